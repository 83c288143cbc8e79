"""Attacks of a coordinator that sends any well-formed requests, counted in recovered cells."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.federation._masked_party import MaskedParty
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._party_policy import SingleUseParty
from fedneighbors.federation._roles import Refusal, serve
from fedneighbors.federation._stores import MemoryStore
from fedneighbors.methods.fedpnn._moments import PointMomentsRequest
from fedneighbors.methods.fedpnn._party import FedPNNParty
from fedneighbors.methods.fedpnn._scaling import ScalingRequest, TableScaling
from fedneighbors.methods.fedpnn._selection import SelectionRequest
from fedneighbors.secure_sum._keys import Identity, Roster
from fedneighbors.tabular._class_moments import QUANTA

MIN_COUNT = 5


def make_table(seed, n=40, n_features=2):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, n_features)), np.arange(n) % 2


def open_party(x, y):
    """Return a party without limits on requests, on which an attack must succeed."""
    return FedPNNParty("p0", x, y)


def guarded_party(x, y):
    """Return a party as at a node with a signing key."""
    identity, others = Identity.new(), [Identity.new() for _ in range(2)]
    keys = {"p0": identity.public, "p1": others[0].public, "p2": others[1].public}
    party = SingleUseParty(open_party(x, y), store=MemoryStore())
    return MaskedParty(party, identity=identity, roster=Roster(keys), store=MemoryStore())


def ask(party, request):
    """Return the reply to a request, or None if the party refuses."""
    reply = decode(serve(party, encode(request)), (type(request).reply, Refusal))
    return None if isinstance(reply, Refusal) else reply


def count_recovered(claimed, x):
    """Return the number of cells that are among the claimed values of their column."""
    return sum(
        bool(np.isclose(claimed[j], value, rtol=0, atol=1e-6).any())
        for j in range(x.shape[1])
        for value in x[:, j]
        if len(claimed[j])
    )


def subtract_prefixes(party, n_features):
    """Recover values from the sums of groups of 1 to 40 knots.

    Groups of two requests end at different positions of the sorted column. The difference of two
    prefix sums that end at neighboring positions is one value.
    """
    prefixes = [{} for _ in range(n_features)]
    for n_knots in range(1, 41):
        for min_count in (MIN_COUNT, MIN_COUNT + 1, MIN_COUNT + 2):
            reply = ask(party, ScalingRequest(n_knots, min_count))
            if reply is None:
                continue
            for j in range(n_features):
                used = reply.sizes[j] > 0
                sums = np.cumsum(reply.knots[j][used] * reply.sizes[j][used])
                ends = np.cumsum(reply.sizes[j][used])
                prefixes[j] |= dict(zip(ends.tolist(), sums, strict=True))
    return [
        np.array([sums[end + 1] - sums[end] for end in sums if end + 1 in sums])
        for sums in prefixes
    ]


def narrow_frames(party, n_features):
    """Recover values from moments in frames that map all values but one to a constant."""
    claimed = []
    for j in range(n_features):
        values = []
        for low in np.linspace(-3, 3, 400):
            width = 0.005
            spans = np.tile([low, low + width], (n_features, 1))
            frame = TableScaling(
                "minmax", spans, np.zeros((n_features, 0)), np.zeros(n_features),
                np.zeros(0, np.int64), np.zeros(0, np.int64),
            )  # fmt: skip
            reply = ask(party, PointMomentsRequest(frame, (0, 1), MIN_COUNT))
            if reply is None:
                continue
            # values outside of [low - 7 width, low + 8 width] count as -8 or 8
            for total in reply.sums[:, j] / QUANTA:
                fraction = total % 8
                values += [low + width * fraction, low + width * (fraction - 8)]
        claimed.append(np.array(values))
    return claimed


@pytest.mark.parametrize("attack", [subtract_prefixes, narrow_frames])
def test_attack_recovers_no_cell_of_a_guarded_party(attack):
    x, y = make_table(0)

    recovered = {
        make.__name__: count_recovered(attack(make(x, y), x.shape[1]), x)
        for make in (open_party, guarded_party)
    }

    assert recovered["open_party"] >= 10  # the attack works
    assert recovered["guarded_party"] == 0


min_counts = st.integers(MIN_COUNT, MIN_COUNT + 3)
columns = st.sampled_from([None, np.array([0]), np.array([1]), np.array([0, 1])])
requests = st.one_of(
    st.builds(ScalingRequest, st.integers(1, 12), min_counts, columns),
    st.builds(SelectionRequest, st.sampled_from([(0, 1), (0, 1, 2)]), st.just(2), min_counts),
)


def find_shortest_difference(party, sequence, n_rows):
    """Return the fewest values in the difference of two sums that the party has sent."""
    ends = {0: {0, n_rows}, 1: {0, n_rows}}
    for request in sequence:
        reply = ask(party, request)
        if isinstance(request, ScalingRequest) and reply is not None:
            positions = (0, 1) if request.columns is None else request.columns.tolist()
            for column, sizes in zip(positions, reply.sizes, strict=True):
                ends[column] |= set(np.cumsum(sizes).tolist())
    return min(np.diff(sorted(column)).min() for column in ends.values())


@settings(max_examples=100, deadline=None)
@given(st.lists(requests, max_size=12), st.integers(MIN_COUNT, 60))
def test_no_sequence_of_requests_isolates_few_values(sequence, n_rows):
    party = guarded_party(*make_table(0, n=n_rows))

    assert find_shortest_difference(party, sequence, n_rows) >= MIN_COUNT


def test_sequences_of_requests_isolate_values_of_an_open_party():
    sequence = [ScalingRequest(n_knots, MIN_COUNT) for n_knots in (1, 2, 3, 5, 7)]

    assert find_shortest_difference(open_party(*make_table(0)), sequence, 40) < MIN_COUNT
