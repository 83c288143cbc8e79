"""Attacks of a coordinator that sends any well-formed requests, counted in recovered cells."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import ndtr

from fedneighbors.errors import DataError, PartyRefused
from fedneighbors.federation import _masked_party
from fedneighbors.federation._inprocess import run as run_in_process
from fedneighbors.federation._loop import FrameTransport, run_rounds, total
from fedneighbors.federation._masked_party import MaskedParty
from fedneighbors.federation._masked_sums import MaskedSums
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._party_policy import SingleUseParty
from fedneighbors.federation._roles import Refusal, serve
from fedneighbors.federation._stores import MemoryStore
from fedneighbors.methods.fedpnn import _party, _scaling, _suppression
from fedneighbors.methods.fedpnn._model import release_centers
from fedneighbors.methods.fedpnn._party import CentersRequest, FedPNNParty
from fedneighbors.methods.fedpnn._scaling import (
    MAX_SCORE,
    PointMomentsRequest,
    ScalingRequest,
    TableScaling,
    make_scaling,
)
from fedneighbors.methods.fedpnn._selection import SelectionRequest
from fedneighbors.methods.fedpnn.protocol import FedPNNSettings, coordinate
from fedneighbors.secure_sum._keys import Identity, Roster
from fedneighbors.tabular._schema import QUANTA
from tests.naive import cuts as naive

MIN_COUNT = 5


def make_table(seed, n=40, n_features=2):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, n_features)), np.arange(n) % 2


def open_party(x, y):
    """Return a party without limits on requests, on which an attack must succeed."""
    return FedPNNParty("p0", x, y)


def guarded_parties(*tables):
    """Return parties as at nodes with signing keys, and their roster."""
    keys = [Identity.new() for _ in range(3)]
    roster = Roster({f"p{k}": key.public for k, key in enumerate(keys)})
    parties = [
        MaskedParty(
            SingleUseParty(FedPNNParty(f"p{k}", *table), store=MemoryStore()),
            identity=key,
            roster=roster,
            store=MemoryStore(),
        )
        for k, (key, table) in enumerate(zip(keys, tables, strict=False))
    ]
    return parties, roster


def guarded_party(x, y):
    """Return a party as at a node with a signing key."""
    return guarded_parties((x, y))[0][0]


def centers_request(n_knots, min_count=MIN_COUNT, columns=None, **changes):
    """Return a request for the centers, by default in each party's own scaling."""
    parameters = {
        "scaling": None,
        "scaling_kind": "minmax",
        "linear_map": np.zeros((0, 0)),
        "classes": (0, 1),
        "threshold": None,
        "factor": 2.0,
        "classwise": False,
        "activation": "gaussian",
        "means": True,
    }
    return CentersRequest(
        n_knots=n_knots, min_count=min_count, columns=columns, **{**parameters, **changes}
    )


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


def ask_constants(party, request):
    """Return the constants in a reply, or None."""
    reply = ask(party, request)
    return getattr(reply, "constants", reply)


def subtract_prefixes(party, n_features, *, make_requests=(ScalingRequest,)):
    """Recover values from the sums of 1 to 8 groups.

    Groups of two requests end at different positions of the sorted column. The difference of two
    prefix sums that end at neighboring positions is one value.
    """
    prefixes = [{} for _ in range(n_features)]
    for n_knots in range(8, 0, -1):
        for min_count in (MIN_COUNT, MIN_COUNT + 1, MIN_COUNT + 2):
            make_request = make_requests[n_knots % len(make_requests)]
            reply = ask_constants(party, make_request(n_knots, min_count))
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


def subtract_prefixes_of_centers(party, n_features):
    """Recover values from constants that are requested with and without centers."""
    kinds = centers_request, ScalingRequest
    return subtract_prefixes(party, n_features, make_requests=kinds)


def narrow_frame(low, width, n_features):
    """Return a scaling that maps a narrow range to all scores, and all other values to the ends."""
    ends, ranks = (np.tile(pair, (n_features, 1)) for pair in ([low, low + width], [0.0, 1.0]))
    no_columns = np.zeros(0, np.int64)
    return TableScaling("quantile", ends, ranks, np.zeros(n_features), no_columns, no_columns)


def invert_sums(sums, low, width):
    """Return the values of single rows, if all others are at the ends of the scores."""
    scores = sums / QUANTA % MAX_SCORE
    return [*(low + width * ndtr(scores)), *(low + width * ndtr(scores - MAX_SCORE))]


def narrow_frames(party, n_features):
    """Recover values from moments in frames that map all values but one to a constant."""
    claimed = []
    for j in range(n_features):
        values = []
        for low in np.linspace(-2, 2, 100):
            width = 0.005
            request = PointMomentsRequest(narrow_frame(low, width, n_features), (0, 1), MIN_COUNT)
            reply = ask(party, request)
            if reply is not None:
                values += invert_sums(reply.sums[:, j], low, width)
        claimed.append(np.array(values))
    return claimed


@pytest.mark.parametrize("attack", [subtract_prefixes, subtract_prefixes_of_centers, narrow_frames])
def test_attack_recovers_no_cell_of_a_guarded_party(attack):
    x, y = make_table(0)

    recovered = {
        make.__name__: count_recovered(attack(make(x, y), x.shape[1]), x)
        for make in (open_party, guarded_party)
    }

    assert recovered["open_party"] >= 10  # the attack works
    assert recovered["guarded_party"] == 0


def sum_over(parties, roster, request):
    """Return the masked sum of the parties' replies, or None if one refuses."""

    def exchange(frames):
        by_name = {party.name: party for party in parties}
        return {name: serve(by_name[name], frame) for name, frame in frames.items()}, {}

    def coordinate():
        return (yield total(request))

    transport = FrameTransport(exchange, tuple(party.name for party in parties))
    try:
        return run_rounds(coordinate(), transport, sums=MaskedSums(roster)).result.total
    except PartyRefused:
        return None


def narrow_frames_of_sums(parties, roster):
    """Recover values of the first party from masked sums of moments.

    The values of the other parties are far away, so that they add multiples of ``MAX_SCORE``.
    """
    first = ScalingRequest(10, MIN_COUNT)
    constants = {party.name: ask(party, first) for party in parties}
    values = []
    for low in np.linspace(-1, 1, 12):
        frame = narrow_frame(low, 0.005, 1)
        request = PointMomentsRequest(frame, (0, 1), MIN_COUNT, None, constants)
        reply = sum_over(parties, roster, request)
        if reply is not None:
            values += invert_sums(reply.sums[:, 0], low, 0.005)
    return [np.array(values)]


class ForgetfulStore(MemoryStore):
    """Store of a party that remembers no answered request."""

    def keep(self, round_id, step, content):
        return content if round_id == "policy" else super().keep(round_id, step, content)


def make_three_tables():
    x, y = make_table(0, n_features=1)
    far = np.full((20, 1), 100.0)
    return (x, y), (far, y[:20]), (far, y[:20])


def test_masked_sums_recover_no_cell_of_guarded_parties():
    (x, y), *others = make_three_tables()
    parties, roster = guarded_parties((x, y), *others)

    assert count_recovered(narrow_frames_of_sums(parties, roster), x) == 0


def test_masked_sums_recover_cells_without_a_check_of_quotes(monkeypatch):
    (x, y), *others = make_three_tables()
    monkeypatch.setattr(_masked_party, "check_quoted", lambda *_, **__: None)
    monkeypatch.setattr(f"{__name__}.MemoryStore", ForgetfulStore)
    parties, roster = guarded_parties((x, y), *others)

    assert count_recovered(narrow_frames_of_sums(parties, roster), x) >= 2


@pytest.mark.parametrize("change", ["invented", "true"])
def test_masked_sum_accepts_only_the_scaling_of_signed_constants(change):
    parties, roster = guarded_parties(*make_three_tables())
    constants = {party.name: ask(party, ScalingRequest(10, MIN_COUNT)) for party in parties}
    true = make_scaling("minmax", list(constants.values()), min_count=MIN_COUNT)
    scaling = true if change == "true" else narrow_frame(0.0, 0.005, 1)

    request = PointMomentsRequest(scaling, (0, 1), MIN_COUNT, None, constants)
    reply = sum_over(parties, roster, request)

    assert (reply is not None) == (change == "true")


def subtract_centers(parties, x):
    """Recover values of one column from its groups and from centers of the same values."""
    column = np.array([0])
    constants = {p.name: ask(p, ScalingRequest(40, MIN_COUNT, column)) for p in parties}
    scaling = make_scaling("minmax", list(constants.values()), min_count=MIN_COUNT)
    request = centers_request(40, columns=column, scaling=scaling, constants=constants)
    reply = ask(parties[0], request)
    low, high = scaling.values[0]
    order = np.argsort(reply.centers[:, 0])
    counts = reply.counts.sum(axis=1)[order]
    sums = np.cumsum((low + (high - low) * reply.centers[order, 0]) * counts)
    own = constants["p0"]
    used = own.sizes[0] > 0
    groups = np.cumsum(own.knots[0][used] * own.sizes[0][used])
    ends = np.cumsum(own.sizes[0][used])
    return np.array(
        [
            abs(group - center)
            for end, group in zip(ends, groups, strict=True)
            for other, center in zip(np.cumsum(counts), sums, strict=True)
            if abs(end - other) == 1
        ]
    )


def leave_parts_apart(parts, kinds, others, positions, *, min_count):
    """Return the parts as they are: the rule for small differences, turned off."""
    return np.arange(len(positions))


def turn_off_joins(monkeypatch):
    for module in (_scaling, _suppression):
        monkeypatch.setattr(module, "join_parts", leave_parts_apart)


def count_differences(n_seeds=5):
    """Return the number of cells that differences of constants and centers recover."""
    recovered = 0
    for seed in range(n_seeds):
        tables = [make_table(3 * seed + k, n_features=1) for k in range(3)]
        x = tables[0][0]
        values = subtract_centers(guarded_parties(*tables)[0], x)
        recovered += int(np.isclose(np.abs(x), values, rtol=0, atol=1e-6).any(axis=0).sum())
    return recovered


def test_constants_and_centers_of_one_column_differ_in_no_row():
    assert count_differences(n_seeds=20) == 0


def test_constants_and_centers_differ_in_a_row_without_joined_parts(monkeypatch):
    turn_off_joins(monkeypatch)

    assert count_differences() >= 1


class RecordingParty(FedPNNParty):
    """Party that records its requests, its replies, and the clusters of its rows."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.replies = {}

    def answer(self, request):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_party, "release_centers", self.release_centers)
            self.replies[type(request)] = request, super().answer(request)
        return self.replies[type(request)][1]

    def release_centers(self, *arguments, **options):
        released = release_centers(*arguments, **options)
        self.clusters = released.rows
        return released


def draw_run(seed):
    """Train on random small tables with gaps and ties; return the first party and its table."""
    rng = np.random.default_rng(seed)
    normalize = ["quantile", "minmax", None][seed % 3]
    metric = "supervised" if normalize and rng.random() < 0.7 else None
    config = FedPNNSettings(
        normalize=normalize,
        metric=metric,
        frame="global" if metric or rng.random() < 0.5 else "local",
        classwise=bool(rng.random() < 0.7),
        n_features_to_select=1 if rng.random() < 0.3 else None,
        n_knots=int(rng.choice([3, 6, 100])),
    )
    tables = []
    for n_rows in (rng.integers(12, 40), 20):
        y = rng.integers(0, rng.integers(2, 4), n_rows)
        x = rng.normal(size=(n_rows, 2)) + rng.choice([0.0, 3.0]) * y[:, None]
        x[:, 0] = x[:, 0].round(rng.integers(0, 3))
        x[rng.random(x.shape) < rng.choice([0.0, 0.1, 0.4])] = np.nan
        tables.append((x, y))
    parties = [RecordingParty(f"p{k}", *table) for k, table in enumerate(tables)]
    try:
        run_in_process(coordinate(config), parties)
    except DataError:  # too few rows of two classes
        return None, None, None
    return parties[0], *tables[0]


def mask_columns_of_sums(party, x, y):
    """Yield the masks of rows in each sum of a column, and the partitions that they form.

    The masks are reconstructed from the replies: each one explains a number that was sent.
    """
    request, centers = party.replies[CentersRequest]
    constants, scaling = centers.constants, request.scaling
    if scaling is None:
        scaling = make_scaling(request.scaling_kind, [constants], min_count=MIN_COUNT)
    else:
        constants = party.replies[ScalingRequest][1]
    frequent = np.bincount(y)[y] >= MIN_COUNT
    x, y = x[frequent], y[frequent]
    columns = np.arange(x.shape[1]) if request.columns is None else request.columns
    points = centers.centers
    if len(request.linear_map):
        points = points @ np.linalg.inv(request.linear_map)
    for j, column in enumerate(columns):
        present = ~np.isnan(x[:, column])
        for label in np.unique(y):
            n_present = (present & (y == label)).sum()
            present &= (y != label) | (n_present >= MIN_COUNT)
        cells = np.where(present[:, None], x[:, columns], np.nan)
        scaled = scaling.apply(cells)[:, j]
        if np.ptp(scaled) == 0.0:
            continue  # the means say nothing, and equal the value of missing cells
        groups = reconstruct_groups(x[:, column], present, y, constants, j)
        fill = scaling.empty_point()[j]
        blocks = reconstruct_blocks(points[:, j], scaled, present, party.clusters, fill)
        has_class_sums = bool({PointMomentsRequest, SelectionRequest} & set(party.replies))
        classes = y if has_class_sums else np.zeros_like(y)
        if PointMomentsRequest in party.replies:
            positions = np.searchsorted(request.classes, np.unique(y))
            moments = party.replies[PointMomentsRequest][1].sums[positions, j]
            means = np.array([scaled[y == label].mean() for label in np.unique(y)])
            expected = np.bincount(y)[np.unique(y)] * means.clip(-8.0, 8.0)
            assert_allclose(moments / QUANTA, expected, rtol=0, atol=len(x) / QUANTA)
        sums = [groups == group for group in range(groups.max() + 1)]
        sums += [blocks == block for block in range(blocks.max() + 1)]
        sums += [present & (classes == label) for label in np.unique(classes)]
        second = list(zip(classes[present].tolist(), blocks[present].tolist(), strict=True))
        yield [part[present].astype(int).tolist() for part in sums], groups[present], second


def reconstruct_groups(values, present, y, constants, j):
    """Return the group of each cell, -1 for none, checked against the means that were sent."""
    groups = np.full(len(values), -1)
    n_missing = [(~present & (y == label)).sum() for label in np.unique(y)]
    sizes = constants.sizes[j][constants.sizes[j] > 0].copy()
    if not len(sizes):
        return groups
    sizes[0] -= sum(n for n in n_missing if n < MIN_COUNT)
    order = np.argsort(np.where(present, values, np.nan), kind="stable")[: present.sum()]
    groups[order] = np.repeat(np.arange(len(sizes)), sizes)
    means = [values[groups == group].mean() for group in range(len(sizes))]
    assert_allclose(constants.knots[j, : len(sizes)], means, rtol=1e-9, atol=1e-12)
    return groups


def reconstruct_blocks(sent, scaled, present, clusters, fill):
    """Return the set of clusters of each cell whose mean was sent, -1 for none."""
    blocks, n_blocks = np.full(len(scaled), -1), 0
    for cluster, coordinate_sent in enumerate(sent):
        alike = np.flatnonzero(np.isclose(sent, coordinate_sent, rtol=0, atol=1e-9))
        for rows in (clusters == cluster, np.isin(clusters, alike)):
            explains = np.isclose(scaled[rows].mean(), coordinate_sent, rtol=0, atol=1e-9)
            if explains and (blocks[rows & present] == -1).all():
                blocks[rows & present], n_blocks = n_blocks, n_blocks + 1
                break
            if explains and blocks[rows & present].min() >= 0:
                break  # clusters that share this mean came before
        else:
            assert coordinate_sent == pytest.approx(fill, abs=1e-9)
    return np.unique(blocks, return_inverse=True)[1] - (blocks == -1).any()


def count_isolated(seeds):
    """Return the cells that linear combinations of replies isolate, and columns with few cells."""
    n_runs = n_isolated = n_small = 0
    for seed in seeds:
        party, x, y = draw_run(seed)
        if party is None:
            continue
        n_runs += 1
        for sums, groups, second in mask_columns_of_sums(party, x, y):
            n_isolated += len(naive.isolated_cells(sums))
            n_small += 0 < naive.smallest_difference(groups.tolist(), second) < MIN_COUNT
    return n_runs, n_isolated, n_small


@pytest.mark.parametrize("n_seeds", [80, pytest.param(210, marks=pytest.mark.slow)])
def test_no_combination_of_the_replies_of_a_run_describes_few_cells(n_seeds):
    n_runs, n_isolated, n_small = count_isolated(range(n_seeds))

    assert n_runs >= n_seeds - 10
    assert (n_isolated, n_small) == (0, 0)


def test_combinations_isolate_cells_without_joined_parts(monkeypatch):
    turn_off_joins(monkeypatch)

    _, n_isolated, n_small = count_isolated(range(40))

    assert n_isolated > 0
    assert n_small > 0


min_counts = st.integers(MIN_COUNT, MIN_COUNT + 3)
columns = st.sampled_from([None, np.array([0]), np.array([1]), np.array([0, 1])])
requests = st.one_of(
    st.builds(ScalingRequest, st.integers(1, 12), min_counts, columns),
    st.builds(centers_request, st.integers(1, 12), min_counts, columns),
    st.builds(SelectionRequest, st.sampled_from([(0, 1), (0, 1, 2)]), st.just(2), min_counts),
)


def find_shortest_difference(party, sequence, n_rows):
    """Return the fewest values in the difference of two sums that the party has sent."""
    ends = {0: {0}, 1: {0}}
    for request in sequence:
        constants = ask_constants(party, request)
        if not isinstance(request, SelectionRequest) and constants is not None:
            positions = (0, 1) if request.columns is None else request.columns.tolist()
            for column, sizes in zip(positions, constants.sizes, strict=True):
                ends[column] |= set(np.cumsum(sizes).tolist())
    return min(np.diff(sorted(column)).min(initial=n_rows) for column in ends.values())


@settings(max_examples=50, deadline=None)
@given(st.lists(requests, max_size=12), st.integers(MIN_COUNT, 60))
def test_no_sequence_of_requests_isolates_few_values(sequence, n_rows):
    party = guarded_party(*make_table(0, n=n_rows))

    assert find_shortest_difference(party, sequence, n_rows) >= MIN_COUNT


@pytest.mark.parametrize("make_request", [ScalingRequest, centers_request])
def test_sequences_of_requests_isolate_values_of_an_open_party(make_request):
    sequence = [make_request(n_knots, MIN_COUNT) for n_knots in (1, 2, 3, 5, 7)]

    assert find_shortest_difference(open_party(*make_table(0)), sequence, 40) < MIN_COUNT
