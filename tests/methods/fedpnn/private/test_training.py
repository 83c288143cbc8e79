"""Private training: requests, model, cost, failures and dropouts."""

from dataclasses import replace

import numpy as np
import pytest

from fedneighbors.errors import (
    DataError,
    PartyMissing,
    PartyRefused,
    PrivacyError,
    ProtocolError,
    SchemaMismatch,
)
from fedneighbors.federation._loop import FrameTransport, run_rounds
from fedneighbors.federation._masked_sums import MaskedSums
from fedneighbors.federation._masking import (
    MaskInput,
    OpenSum,
    Unmask,
)
from fedneighbors.methods.fedpnn.private._model import axis_between, estimate_means, estimate_origin
from fedneighbors.methods.fedpnn.private._release import (
    cell_counts,
    class_sums,
    class_sums_release,
    directions,
    origin_release,
    origin_sums,
    public_bounds,
    scale_to_cube,
)
from fedneighbors.methods.fedpnn.private.protocol import (
    CellsRequest,
    NoisyReply,
    coordinate_private,
)
from fedneighbors.privacy._accounting import fits
from tests.federation.masked_parties import enroll, lose_parties
from tests.methods.fedpnn.private.tables import (
    CENTRAL,
    LOCAL,
    make_parties,
    make_party,
    make_table,
    open_ledger,
    train,
)

MASKED = replace(LOCAL, mechanism="central")
GAUSSIAN = replace(LOCAL, delta="1e-6")
ALL_TERMS = pytest.mark.parametrize(
    "privacy", [LOCAL, MASKED, GAUSSIAN, CENTRAL], ids=["local", "central", "gauss", "both"]
)


@ALL_TERMS
@pytest.mark.parametrize("n_classes", [2, 3])
def test_every_party_receives_the_coordinators_model(privacy, n_classes):
    privacy = replace(privacy, classes=tuple(range(n_classes)))
    members = make_parties(4, privacy, n_classes=n_classes)

    model = train(members, privacy).result

    assert {member.model.to_bytes() for member in members} == {model.to_bytes()}
    assert model.guarantee == f"{privacy.total}; add_remove of one row; {privacy.mechanism}"
    assert len(model.neurons.positions) == (8 if n_classes == 2 else 3)


@ALL_TERMS
@pytest.mark.parametrize("n_classes", [2, 3])
def test_training_spends_the_whole_budget_of_every_party(privacy, n_classes):
    privacy = replace(privacy, classes=tuple(range(n_classes)))
    members = make_parties(4, privacy, n_classes=n_classes)
    train(members, privacy)

    with pytest.raises(PartyRefused, match="privacy budget"):
        train(members, privacy, run_name="again")

    for member in members:
        ledger = member._gate.ledger
        released = [entry for entry in ledger.entries() if entry.kind == "released"]
        assert len(released) == (3 if n_classes == 2 else 2)
        assert fits([ledger.spent("table")], privacy.total)
        assert 0.999 < float(ledger.spent("table").epsilon) <= 1


def test_refused_training_releases_nothing():
    with_small_budget = make_party(
        "p1", ledger=open_ledger("p1", replace(LOCAL, epsilon="1/10").total)
    )
    with_full_budget = make_party("p0", rows=make_table(seed=1))

    with pytest.raises(PartyRefused, match="'p1' refused: its privacy budget"):
        train([with_full_budget, with_small_budget], LOCAL)

    assert [entry.kind for entry in with_small_budget._gate.ledger.entries()] == ["budget"]
    assert (with_full_budget.model, with_small_budget.model) == (None, None)


def compute_pooled_neurons(privacy, n):
    """Compute the neurons of the pooled rows of all parties, without noise."""
    tables = [make_table(seed=k) for k in range(n)]
    x, y = np.concatenate([t[0] for t in tables]), np.concatenate([t[1] for t in tables])
    cube = scale_to_cube(x, public_bounds(privacy, 4))
    first, second = origin_release(privacy, 4, 2).levels, class_sums_release(privacy, 4, 2).levels
    origin = estimate_origin(origin_sums(cube, first), n_features=4, levels=first, variance=0)
    units = directions(cube, origin)
    means = estimate_means(class_sums(units, y, 2, second), n_classes=2, levels=second, variance=0)
    axis = axis_between(means.means)
    return origin, axis, cell_counts(units, y, axis).reshape(2, -1).T


@pytest.mark.parametrize("mechanism", ["local", "central"])
def test_neurons_with_negligible_noise_match_pooled_rows(mechanism):
    large_budget = replace(LOCAL, epsilon=10**6, mechanism=mechanism)

    model = train(make_parties(4, large_budget), large_budget).result

    origin, axis, counts = compute_pooled_neurons(large_budget, 4)
    assert (model.origin == origin).all()
    assert (model.neurons.axes[:, 0] == axis).all()
    assert (np.rint(model.neurons.weights * kernel_mass(model)[:, None]) == counts).all()


def kernel_mass(model):
    differences = model.neurons.positions - model.neurons.positions.T
    return np.exp(-(differences**2) / (2 * model.neurons.sigma**2)).sum(axis=0)


def test_central_noise_is_below_local_noise():
    local, central = (
        train(make_parties(8, privacy), privacy).result.neurons.noise for privacy in (LOCAL, MASKED)
    )

    # 8 parties: 5 shares suffice, and a sixth is known to a colluder.
    np.testing.assert_allclose(local**2, 5 * central**2, rtol=1e-9)


@pytest.mark.parametrize("privacy", [LOCAL, CENTRAL], ids=lambda p: p.mechanism)
def test_noise_of_the_cells_has_the_stated_variance(privacy):
    terms = replace(privacy, classes=(0, 1))
    no_rows = np.zeros((0, 4)), np.zeros(0, int)  # without rows, the cells are pure noise
    samples = []
    for seed in range(20):
        members = [
            make_party(f"p{k}", privacy=terms, rows=no_rows, bits_seed=1000 * k + seed)
            for k in range(3)
        ]
        neurons = train(members, terms).result.neurons
        samples.append((neurons.weights / neurons.noise[:, None]).ravel())

    standard = np.concatenate(samples)

    # 320 seeded cells, sums of three draws, of kurtosis up to 4: the mean square is off by 7
    # deviations, sqrt(3 / 320) each, with a probability below 1e-9.
    assert np.mean(standard**2) == pytest.approx(1, abs=7 * np.sqrt(3 / standard.size))


@pytest.mark.parametrize("step", [OpenSum, MaskInput, Unmask])
def test_parties_may_drop_out_of_masked_sums(step):
    members = make_parties(8, CENTRAL)
    masked, roster = enroll(members)
    by_name = {member.name: member for member in masked}

    with pytest.raises(PartyMissing) as caught:  # the model does not reach the lost parties
        run_rounds(
            coordinate_private(CENTRAL, run="a"),
            FrameTransport(lose_parties(by_name, step, ("p6", "p7")), tuple(by_name)),
            sums=MaskedSums(roster),
        )

    assert set(caught.value.missing) == {"p6", "p7"}
    assert members[0].model is not None


def test_party_missing_from_plain_sums_aborts_training():
    members = {member.name: member for member in make_parties(3, LOCAL)}

    with pytest.raises(PartyMissing, match="no reply to the cells"):
        run_rounds(
            coordinate_private(LOCAL, run="a"),
            FrameTransport(lose_parties(members, CellsRequest, ("p2",)), tuple(members)),
        )

    assert [member.model for member in members.values()] == [None] * 3


def test_masked_sums_use_masked_requests():
    rounds = train(make_parties(4, CENTRAL), CENTRAL).rounds

    assert {record.request.partition(":")[0] for record in rounds} == {
        "PublicSchemaRequest",
        "MaskedOriginRequest",
        "MaskedClassSumsRequest",
        "MaskedCellsRequest",
        "PrivateFedPNNRelease",
    }


def test_single_party_uses_plain_requests_under_central():
    rounds = train(make_parties(1, CENTRAL), CENTRAL).rounds

    assert [record.request for record in rounds] == [
        "PublicSchemaRequest",
        "OriginRequest",
        "ClassSumsRequest",
        "CellsRequest",
        "PrivateFedPNNRelease",
    ]


def test_more_than_two_classes_need_no_cells():
    privacy = replace(LOCAL, classes=(0, 1, 2))
    rounds = train(make_parties(2, privacy, n_classes=3), privacy).rounds

    assert "CellsRequest" not in {record.request for record in rounds}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mechanism": "paper"}, "has no private mechanism"),
        ({"n_picks": 5, "constants_share": "1/4"}, "constants_share, n_picks have no effect"),
        ({"bounds": None}, "give bounds, an array of shape"),
        ({"classes": None}, r"Privacy\(classes="),
        ({"n_parties": 4}, "expected the 4 parties that privacy names, got 2"),
        ({"bounds": ((0.0,) * 3, (1.0,) * 3)}, "one or 4 of them"),
    ],
)
def test_missing_or_invalid_settings_raise(change, words):
    members = make_parties(2, LOCAL)

    with pytest.raises(ValueError, match=words):
        train(members, replace(LOCAL, **change))

    assert all(len(member._gate.ledger.entries()) == 1 for member in members)


def test_more_colluders_than_survivors_are_rejected():
    policy = replace(CENTRAL, colluders=3)

    with pytest.raises(PrivacyError, match="do not protect against colluders=3"):
        train(make_parties(4, policy), policy)


def test_one_class_is_rejected():
    policy = replace(LOCAL, classes=(0,))

    with pytest.raises(DataError, match="at least two classes"):
        train([make_party(privacy=policy)], policy)


def test_schema_mismatch_is_found_before_any_charge():
    members = [make_party("p0"), make_party("p1", rows=(make_table()[0][:, :3], make_table()[1]))]

    with pytest.raises(SchemaMismatch):
        train(members, LOCAL)

    assert all(len(member._gate.ledger.entries()) == 1 for member in members)


class TamperingParty:
    """Private party that sends altered vectors."""

    def __init__(self, change):
        self._inner = make_party("tampering", bits_seed=1)
        self.name, self.accepts = "tampering", self._inner.accepts
        self._change = change

    def answer(self, request):
        reply = self._inner.answer(request)
        return NoisyReply(self._change(reply.values)) if isinstance(reply, NoisyReply) else reply


@pytest.mark.parametrize("change", [lambda v: v[:-1], lambda v: np.append(v, 0)])
def test_vectors_of_wrong_length_are_rejected(change):
    with pytest.raises(ProtocolError, match="expected 5 noised values for the origin"):
        train([TamperingParty(change)], LOCAL)


def test_same_run_name_repeats_the_model_without_a_charge():
    members = make_parties(2, LOCAL)

    first, second = (train(members, LOCAL).result.to_bytes() for _ in range(2))

    assert first == second
