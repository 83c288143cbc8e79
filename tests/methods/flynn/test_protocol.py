import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from fedneighbors.errors import (
    DataError,
    FederationError,
    PartyMissing,
    PartyRefused,
    ProtocolError,
    SchemaMismatch,
    WireError,
)
from fedneighbors.federation._loop import FrameTransport, run_rounds
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refused, serve
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn._model import FlyNNModel
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.algorithm import SHARPNESS_GRID, HashPlan
from fedneighbors.methods.flynn.protocol import (
    CalibrationReply,
    CountReply,
    CountRequest,
    Finish,
    FlyNNParty,
    ModelRelease,
    MomentsRequest,
    SchemaRequest,
    coordinate,
)
from fedneighbors.tabular._model_file import MAX_PENDING
from fedneighbors.tabular._schema import MomentsReply, Receipt, SchemaReply
from tests.methods.flynn.federations import train

PLAN = HashPlan(FeatureMap(2, "mirror", np.zeros(2), np.ones(2)), 9, 2, 3, 5)
SETTINGS = FlyNNSettings(
    n_units=40, n_inputs=2, n_active=5, decay=None, expand="mirror", class_normalized=True
)
SECRET = 123456.789


def table(n_rows=12, n_columns=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, n_columns)), np.arange(n_rows) % 2


def party(name, *, x=None, y=None, **options):
    rows, labels = table()
    return FlyNNParty(name, rows if x is None else x, labels if y is None else y, **options)


# Different tables.


@pytest.mark.parametrize(
    ("names", "column", "words"),
    [
        (("age", "mass", "size"), "weight", "expected 'weight' at position 1, found 'mass'"),
        (("weight", "age", "size"), "age", "expected 'age' at position 0, found 'weight'"),
        (("age", "weight", "Size"), "size", "expected 'size' at position 2, found 'Size'"),
        (None, "(all)", "expected columns with names, found columns with no names"),
    ],
)
def test_other_column_names_are_refused_with_party_and_column(names, column, words):
    first = party("north", feature_names=("age", "weight", "size"))
    second = party("south", feature_names=names)

    with pytest.raises(SchemaMismatch, match=words) as caught:
        train([second, first], SETTINGS)

    assert (caught.value.party, caught.value.column) == ("south", column)
    assert "party 'south'" in str(caught.value)


def test_named_and_unnamed_tables_do_not_mix():
    named = party("south", feature_names=("a", "b", "c"))

    with pytest.raises(
        SchemaMismatch, match="expected columns with no names, found columns with n"
    ):
        train([party("north"), named], SETTINGS)


def test_another_number_of_columns_is_refused():
    with pytest.raises(SchemaMismatch, match="expected 3 columns, found 4 columns") as caught:
        train([party("north"), party("south", x=table(n_columns=4)[0])], SETTINGS)

    assert caught.value.party == "south"


def test_columns_of_another_kind_are_refused():
    flags = table()[0] > 0

    with pytest.raises(SchemaMismatch, match=r"column 0.*expected number, found boolean") as caught:
        train([party("north"), party("south", x=flags)], SETTINGS)

    assert caught.value.party == "south"


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.array(["no", "yes"]), "expected labels of type int, found str"),
        (np.array([0.0, 1.0]), "expected labels of type int, found float"),
        (np.array([False, True]), "expected labels of type int, found bool"),
    ],
)
def test_labels_of_another_type_are_refused(labels, words):
    other = party("south", y=labels[table()[1]], label_name="outcome")

    with pytest.raises(SchemaMismatch, match=words) as caught:
        train([party("north"), other], SETTINGS)

    assert (caught.value.party, caught.value.column) == ("south", "outcome")


def test_labels_that_differ_from_the_named_classes_are_refused():
    with pytest.raises(SchemaMismatch, match="expected labels of type str, found int"):
        train([party("north")], replace(SETTINGS, classes=("no", "yes")))


# Unusable values.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array, scipy.sparse.csc_matrix])
@pytest.mark.parametrize("names", [None, ("age", "weight", "size")])
def test_non_finite_values_are_refused_without_the_value(bad, kind, names):
    x, _ = table()
    x[7, 1] = bad
    x[7, 2] = SECRET

    with pytest.raises(PartyRefused, match="a value is missing or not finite") as caught:
        train(
            [party("north", feature_names=names), party("south", x=kind(x), feature_names=names)],
            SETTINGS,
        )

    assert caught.value.party == "south"
    assert caught.value.detail == ("weight" if names else "column 1")
    assert not any(word in str(caught.value) for word in ("123456", "nan", "inf ", "7"))


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("value", [2.0**200, -(2.0**200), 1e300])
def test_values_too_large_to_standardize_name_their_column(kind, value):
    x, _ = table()
    x[3, 2] = value

    with pytest.raises(PartyRefused, match="too large to standardize") as caught:
        train([party("north"), party("south", x=kind(x))], SETTINGS)

    assert (caught.value.party, caught.value.detail) == ("south", "column 2")


def test_the_largest_value_that_can_be_standardized_is_accepted():
    x, _ = table()
    x[3, 2] = np.nextafter(2.0**200, 0)

    model = train([party("north"), party("south", x=x)], SETTINGS)

    assert model.n_rows == 24


def test_text_is_refused_with_its_column():
    x = table()[0].astype(object)
    x[4, 1] = "SECRET"

    with pytest.raises(PartyRefused, match="a column is not numeric") as caught:
        train([party("north"), party("south", x=x, feature_names=None)], SETTINGS)

    assert (caught.value.party, caught.value.detail) == ("south", "column 1")
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.array([0.5, np.nan]), "a label is missing"),
        (np.array(["a", None], object), "a label is missing"),
        (np.array(["a", np.nan], object), "a label is missing"),
        (np.array(["a", 1], object), "labels are of different types"),
        (np.array([1, True], object), "labels are of different types"),
        (np.array([b"a", b"b"]), "a label is neither text, number nor boolean"),
        (np.array(["2020-01-01", "2021-01-01"], "datetime64[D]"), "a label is neither"),
        (np.array([0, 2**63], np.uint64), "a label does not fit into 64 bits"),
    ],
    ids=str,
)
def test_unusable_labels_are_refused_with_their_name(labels, words):
    other = party("south", y=labels[table()[1]], label_name="outcome")

    with pytest.raises(PartyRefused, match=words) as caught:
        train([party("north"), other], SETTINGS)

    assert (caught.value.party, caught.value.detail) == ("south", "outcome")


def test_numpy_labels_in_object_arrays_are_plain_labels():
    labels = np.array([np.str_("a"), "b"], object)

    model = train([party("north", y=labels[table()[1]])], SETTINGS)

    assert model.classes == ("a", "b")
    assert {type(label) for label in model.classes} == {str}


def test_a_party_needs_one_label_for_each_row():
    with pytest.raises(ValueError, match="expected one label for each of 12 rows, got 5"):
        FlyNNParty("north", table()[0], np.zeros(5))


# Too little data.


@pytest.mark.parametrize("standardize", [True, False])
def test_no_rows_at_all_train_nothing(standardize):
    empty = np.zeros((0, 3))
    parties = [FlyNNParty(name, empty, np.zeros(0, int)) for name in "ab"]

    with pytest.raises(DataError, match="expected at least one row over all parties, got none"):
        train(parties, replace(SETTINGS, standardize=standardize, classes=(0, 1)))
    with pytest.raises(DataError, match="expected at least two classes over all parties, got none"):
        train(parties, replace(SETTINGS, standardize=standardize))


def test_one_class_trains_nothing():
    parties = [party(name, y=np.full(12, "well")) for name in "ab"]

    with pytest.raises(DataError, match="over all parties, got one class 'well'; add rows of"):
        train(parties, SETTINGS)


def test_two_parties_of_one_class_each_train_a_model():
    model = train([party("a", y=np.zeros(12, int)), party("b", y=np.ones(12, int))], SETTINGS)

    assert model.sizes.tolist() == [12, 12]


# Missing replies.


def lossy_exchange(parties, lost, at_round):
    """Return an exchange that loses one party from a round on."""
    calls = []

    def exchange(frames):
        calls.append(1)
        missing = {lost: "timed out"} if len(calls) > at_round else {}
        return {
            name: serve(parties[name], frame)
            for name, frame in frames.items()
            if name not in missing
        }, missing

    return exchange


@pytest.mark.parametrize(
    ("at_round", "during"),
    [
        (0, "the schema"),
        (1, "the column moments"),
        (2, "the counts"),
        (3, "the calibration"),
        (4, "the summed losses"),
    ],
)
def test_a_lost_party_ends_the_run_without_a_model(tmp_path, at_round, during):
    parties = {name: party(name, model_path=tmp_path / name) for name in ("north", "south")}

    with pytest.raises(
        PartyMissing, match=rf"no reply to {during} from party 'south' \(timed out\)"
    ):
        run_rounds(
            coordinate(SETTINGS),
            FrameTransport(lossy_exchange(parties, "south", at_round), ("north", "south")),
        )

    assert parties["south"].model is None
    assert not (tmp_path / "south").exists()
    if at_round < 4:
        assert parties["north"].model is None
        assert not (tmp_path / "north").exists()


# Dishonest parties.


class Liar(FlyNNParty):
    """Answers one kind of request with altered fields."""

    def __init__(self, lie, **options):
        super().__init__("liar", *table(), **options)
        self.lie = lie

    def answer(self, request):
        reply = super().answer(request)
        kind, change = self.lie
        return change(reply) if isinstance(reply, kind) else reply


LIES = {
    "one row more": (MomentsReply, lambda r: replace(r, n_rows=r.n_rows + 1)),
    "one row fewer": (MomentsReply, lambda r: replace(r, n_rows=r.n_rows - 1)),
    "negative rows": (MomentsReply, lambda r: replace(r, n_rows=-5)),
    "impossible squares": (MomentsReply, lambda r: replace(r, squares=-r.squares)),
    "moments of more columns": (
        MomentsReply,
        lambda r: replace(r, sums=np.zeros((4, 13), np.int64), squares=np.zeros((4, 26), np.int64)),
    ),
    "no moments": (
        MomentsReply,
        lambda r: replace(r, sums=np.zeros((0, 0), np.int64), squares=np.zeros((0, 0), np.int64)),
    ),
    "one count more": (
        CountReply,
        lambda r: replace(r, counts=r.counts + np.eye(40, 2, dtype="u2")),
    ),
    "counts doubled": (CountReply, lambda r: replace(r, counts=r.counts * np.uint16(2))),
    "counts of another shape": (CountReply, lambda r: replace(r, counts=r.counts[:-1])),
    "counts of fewer classes": (CountReply, lambda r: replace(r, counts=r.counts[:, :1])),
    "counts in the wrong classes": (
        CountReply,
        lambda r: replace(r, counts=move_one_count(r.counts)),
    ),
    "all counts on one unit": (CountReply, lambda r: replace(r, counts=move_to_one_unit(r.counts))),
    "counts that overflow": (
        CountReply,
        lambda r: replace(r, counts=np.full(r.counts.shape, 2**16 - 1, "u2")),
    ),
    "losses of another length": (CalibrationReply, lambda r: replace(r, losses=r.losses[:3])),
    "very negative losses": (CalibrationReply, lambda r: replace(r, losses=r.losses - 2**40)),
    "labels of another type": (SchemaReply, lambda r: build_unchecked(r, label_kind="str")),
    "names of other columns": (SchemaReply, lambda r: build_unchecked(r, feature_names=("a",))),
    "a reply of another kind": (CountReply, lambda r: Receipt()),
}


def move_one_count(counts):
    counts = counts.copy()
    row = counts[:, 0].argmax()
    counts[row] += np.array([-1, 1]).astype("u2")  # the total stays
    return counts


def move_to_one_unit(counts):
    result = np.zeros_like(counts)
    result[0] = counts.sum(axis=0)
    return result


def build_unchecked(reply, **change):
    """Return a changed message without the checks of its class."""
    result = object.__new__(type(reply))
    for name in type(reply).__dataclass_fields__:
        object.__setattr__(result, name, change.get(name, getattr(reply, name)))
    return result


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside an honest party"])
@pytest.mark.parametrize("lie", sorted(LIES))
def test_inconsistent_sums_of_a_party_are_detected(lie, alone):
    parties = [Liar(LIES[lie])] + ([] if alone else [party("honest")])

    with pytest.raises((ProtocolError, WireError, SchemaMismatch, DataError)) as caught:
        train(parties, SETTINGS)

    assert isinstance(caught.value, FederationError) or lie == "negative rows"
    assert all(member.model is None for member in parties)


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ("one count more", "do not add up to a multiple of 5"),
        ("counts of another shape", "expected counts of 40 units by 2"),
        ("counts of fewer classes", "expected counts of 40 units by 2"),
        ("all counts on one unit", "counted more often than its class has rows"),
    ],
)
def test_the_party_that_sends_impossible_counts_is_named(lie, words):
    with pytest.raises(ProtocolError, match=rf"party 'liar': .*{words}"):
        train([party("honest"), Liar(LIES[lie])], SETTINGS)


def test_counts_beyond_the_declared_rows_are_refused():
    doubled = (CountReply, lambda r: replace(r, counts=r.counts * np.uint16(2)))
    settings = replace(SETTINGS, declared_rows={"honest": 12, "liar": 12})

    with pytest.raises(ProtocolError, match=r"party 'liar': counts of more than the 12 rows"):
        train([party("honest"), Liar(doubled)], settings)


def test_declared_rows_do_not_change_the_model_of_honest_parties():
    parties = [party("north"), party("south")]
    declared = replace(SETTINGS, declared_rows={"north": 12, "south": 40})

    assert train(parties, declared).to_bytes() == train(parties, SETTINGS).to_bytes()


def test_counts_of_another_width_cannot_be_added_up():
    wide = (CountReply, lambda r: replace(r, counts=r.counts.astype("u4")))

    with pytest.raises(ProtocolError, match="others sent uint16"):
        train([Liar(wide), party("honest")], SETTINGS)


# Messages and their order.


def schema():
    return SchemaReply(("a", "b"), ("number", "number"), "target", "int", (0, 1))


@pytest.mark.parametrize(
    "item",
    [
        SchemaRequest(),
        schema(),
        SchemaReply(None, (), "", "none", ()),
        MomentsRequest(True),
        MomentsReply(7, np.ones((2, 13), np.int64), np.zeros((2, 26), np.int64)),
        CountRequest(PLAN, ("a", "b"), 16, {"north": 9}),
        CountRequest(replace(PLAN, features=FeatureMap(2, "none")), (False, True), 32, {}),
        CountReply(np.arange(6, dtype=np.uint16).reshape(3, 2)),
        ModelRelease(FlyNNModel(PLAN, (0, 1), np.eye(9, 2, dtype="u1"), 0.5, True)),
        CalibrationReply(np.arange(len(SHARPNESS_GRID))),
        Finish(np.arange(len(SHARPNESS_GRID))),
        Receipt(),
    ],
    ids=lambda item: type(item).__name__,
)
def test_messages_survive_a_round_trip(item):
    copy = decode(encode(item), (type(item),))

    assert copy == item
    assert encode(copy) == encode(item)


def test_a_count_request_carries_the_plan():
    plan = SETTINGS.plans(*moments_of(party("a")))[0]

    request = CountRequest(plan, (0, 1), 16, {})

    assert encode(decode(encode(request), (CountRequest,)).plan) == encode(plan)


def moments_of(member):
    reply = member.answer(MomentsRequest(True))
    return reply, 3


def test_finish_before_a_released_model_is_refused():
    with pytest.raises(Refused, match="there is no model to finish"):
        party("north").answer(Finish(np.zeros(len(SHARPNESS_GRID), np.int64)))


def test_a_party_refuses_losses_that_do_not_fit():
    member = party("north")
    member.answer(ModelRelease(train([party("other")], SETTINGS)))

    with pytest.raises(Refused, match="the losses do not fit the model"):
        member.answer(Finish(np.zeros(3, np.int64)))

    assert member.model is None


def test_a_party_without_memory_finishes_the_model_on_disk(tmp_path):
    path = tmp_path / "flynn.model"
    released = replace(
        train([party("other")], SETTINGS), losses=np.zeros(len(SHARPNESS_GRID), np.int64)
    )
    reply = party("north", model_path=path).answer(ModelRelease(released))
    before = [p.name for p in tmp_path.iterdir()]

    restarted = party("north", model_path=path)
    restarted.answer(Finish(reply.losses))

    assert before == ["flynn.model.run.pending"]
    assert [p.name for p in tmp_path.iterdir()] == ["flynn.model"]
    expected = replace(released, losses=np.array(reply.losses)).to_bytes()
    assert path.read_bytes() == expected == restarted.model.to_bytes()


def test_concurrent_runs_at_one_node_finish_their_own_models(tmp_path):
    path = tmp_path / "flynn.model"
    models = [train([party("other")], replace(SETTINGS, seed=seed)) for seed in (1, 2)]

    for run_name, model in zip("12", models, strict=True):
        party("north", model_path=path, run=run_name).answer(ModelRelease(model))
    finished = [party("north", model_path=path, run=run_name) for run_name in "12"]
    for each, model in zip(finished, models, strict=True):
        each.answer(Finish(model.losses))

    assert [each.model.to_bytes() for each in finished] == [m.to_bytes() for m in models]
    assert [p.name for p in tmp_path.iterdir()] == ["flynn.model"]


def test_a_node_keeps_unfinished_models_of_few_runs(tmp_path):
    path = tmp_path / "flynn.model"
    model = train([party("other")], SETTINGS)

    for number in range(MAX_PENDING + 3):
        party("north", model_path=path, run=str(number)).answer(ModelRelease(model))
        os.utime(tmp_path / f"flynn.model.{number}.pending", (number, number))

    kept = {int(p.name.split(".")[2]) for p in tmp_path.iterdir()}
    assert kept == set(range(3, MAX_PENDING + 3))


def test_every_party_writes_the_model_of_the_coordinator(tmp_path):
    parties = [party(name, model_path=tmp_path / f"{name}.model") for name in "abc"]

    model = train(parties, SETTINGS)

    written = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert written == {f"{name}.model": model.to_bytes() for name in "abc"}
    assert FlyNNModel.load(Path(tmp_path / "a.model")).sharpness == model.sharpness


def test_a_party_that_cannot_write_keeps_its_old_model(tmp_path, monkeypatch):
    path = tmp_path / "flynn.model"
    path.write_bytes(b"old")
    model = train([party("other")], SETTINGS)
    member = party("north", model_path=path)
    member.answer(ModelRelease(model))

    def fail(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        member.answer(Finish(model.losses))
    files = {p.name for p in tmp_path.iterdir()}
    failed_model = member.model
    monkeypatch.undo()
    member.answer(Finish(model.losses))

    assert failed_model is None
    assert files == {"flynn.model", "flynn.model.run.pending"}
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"flynn.model": model.to_bytes()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"plan": HashPlan(FeatureMap(4, "none"), 40, 2, 3, 0)},
            "the number of columns is not the announced one",
        ),
        ({"classes": (0, 5)}, "a label is not among the classes"),
    ],
)
def test_a_party_refuses_to_count_for_another_table(change, words):
    request = CountRequest(SETTINGS.plans(*moments_of(party("a")))[0], (0, 1), 16, {})
    request = replace(request, **change)

    with pytest.raises(Refused, match=words):
        party("north").answer(request)


def test_a_party_refuses_an_unknown_request():
    with pytest.raises(Refused, match="unknown request"):
        party("north").answer(Receipt())


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"n_units": 10.0}, TypeError, "expected n_units as an integer or None, got 10.0"),
        ({"n_inputs": "two"}, TypeError, "expected n_inputs as an integer or None, got 'two'"),
        ({"n_active": True}, TypeError, "expected n_active as an integer or None, got True"),
        ({"decay": "slow"}, TypeError, "expected decay as a number, 'auto' or None, got 'slow'"),
        ({"decay": True}, TypeError, "expected decay as a number, 'auto' or None, got True"),
        ({"decay": 1.1}, ValueError, r"expected decay in \[0, 1\], 'auto' or None, got 1.1"),
        (
            {"decay": float("nan")},
            ValueError,
            r"expected decay in \[0, 1\], 'auto' or None, got nan",
        ),
        (
            {"class_normalized": 1},
            TypeError,
            "expected class_normalized True, False or 'auto', got 1",
        ),
        ({"standardize": "std"}, ValueError, "expected standardize True, False, 'feature' or"),
    ],
)
def test_settings_of_the_wrong_kind_are_refused(change, error, words):
    with pytest.raises(error, match=words):
        FlyNNSettings(**change)


def test_missing_settings_derive_from_the_number_of_rows():
    plan = FlyNNSettings().plans(*moments_of(party("a")))[0]

    assert plan.n_units >= 10_000
    assert plan.n_active <= plan.n_units
    assert FlyNNSettings(n_units=3).plans(*moments_of(party("a")))[0].n_active == 3
