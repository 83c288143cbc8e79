"""Agreement on columns, categories and fills; models of tables with gaps and words over Flower."""

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.cli._predict import predict
from fedneighbors.datasets import Schema, read_columns
from fedneighbors.datasets._reading import dataset_from_table
from fedneighbors.datasets._schema_columns import CategoricalColumn, NumericColumn
from fedneighbors.errors import PartyRefused, SchemaMismatch
from fedneighbors.federation._flower import RUN_KEY
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._roles import Refused, make_refusal
from fedneighbors.methods.fedpnn import flower_app as fedpnn_app
from fedneighbors.methods.flynn import flower_app
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.protocol import FlyNNParty, coordinate
from fedneighbors.tabular import _app_config
from fedneighbors.tabular._agreement import (
    AgreedSchema,
    AgreeingParty,
    DraftRequest,
    find_misfit,
    merge_drafts,
)
from fedneighbors.tabular._app_config import party_table
from tests.federation.grid import ProcessGrid, model_folder
from tests.federation.test_flower_fedpnn import DEFAULTS as FEDPNN_DEFAULTS
from tests.federation.test_flower_flynn import node, train

PARTIES = ("ann", "bob", "cyd")
ENDINGS = ("model", "schema.toml")


def make_rows(n=60):
    random = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "age": random.integers(20, 90, n).astype(float),
            "ward": random.choice(["a", "b", "c"], n),
            "dose": random.integers(0, 9, n).astype(float),
            "kind": np.arange(n) % 3,
        }
    )
    frame.loc[random.random(n) < 0.2, "age"] = np.nan
    frame.loc[random.random(n) < 0.2, "ward"] = None
    return frame


@pytest.fixture
def folder(tmp_path):
    """Write tables with gaps; bob's columns are reversed, and cyd has a ward of its own."""
    rows = make_rows()
    rows.loc[rows.index[2::3], "ward"] = "z"
    rows.loc[1::3, ["age", "ward"]] = rows.loc[1::3, ["age", "ward"]].bfill().ffill()  # no gaps
    rows.to_csv(tmp_path / "pooled.csv", index=False)
    for k, name in enumerate(PARTIES):
        columns = rows.columns[::-1] if name == "bob" else rows.columns
        rows[k::3][columns].to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


def make_grid(folder, **nodes):
    return ProcessGrid(flower_app.client, *(node(folder, n, **nodes.get(n, {})) for n in PARTIES))


def test_model_equals_the_pooled_one_with_gaps_and_words(folder):
    train(folder, make_grid(folder), **{"n-units": 256, "seed": 5})

    schema = Schema.load(folder / "coordinator" / "flynn.schema.toml")
    table = read_columns(folder / "pooled.csv", nominal=["kind"])
    data = dataset_from_table(table, "kind", name="pooled", schema=schema)
    names = {"feature_names": data.feature_names, "label_name": "kind"}
    pooled = FlyNNParty("pooled", data.x, data.y, **names)
    expected = run(coordinate(FlyNNSettings(n_units=256, seed=5)), [pooled]).result.to_bytes()
    assert schema.feature_names == (
        "age",
        *(f"ward={w}" for w in ("a", "b", "c", "missing", "z")),
        "dose",
    )
    for owner in ("coordinator", *PARTIES):
        assert (folder / owner / "flynn.model").read_bytes() == expected
        assert Schema.load(folder / owner / "flynn.schema.toml") == schema


def test_predict_reads_new_rows_with_gaps(folder, tmp_path):
    train(folder, make_grid(folder), **{"n-units": 256})
    new_rows = pd.DataFrame({"dose": [1, None], "ward": [None, "z"], "age": ["", 40]})
    new_rows.to_csv(tmp_path / "new.csv", index=False)

    model = folder / "bob" / "flynn.model"
    predict(model=model, data=tmp_path / "new.csv", out=tmp_path / "out.csv")

    assert len((tmp_path / "out.csv").read_text().splitlines()) == 3


def test_each_method_has_its_own_schema(folder, tmp_path):
    train(folder, make_grid(folder), **{"n-units": 256})
    config = {**FEDPNN_DEFAULTS, "min-parties": 3, "min-count": 2}
    config["model-path"] = str(folder / "coordinator" / "fedpnn.model")
    grid = ProcessGrid(fedpnn_app.client, *(node(folder, n, **{"min-count": 2}) for n in PARTIES))
    fedpnn_app.server(grid, Context(1, 1, {}, RecordDict(), config))
    (tmp_path / "new.csv").write_text("dose,ward,age\n1,,\n,z,40\n")
    (folder / "bob" / "schema.toml").write_text("of no model")

    for method, fill in (("flynn", float), ("fedpnn", str)):
        out = tmp_path / f"{method}.csv"
        model = folder / "bob" / f"{method}.model"
        predict(model=model, data=tmp_path / "new.csv", out=out)
        assert len(out.read_text().splitlines()) == 3
        schema = Schema.load(folder / "bob" / f"{method}.schema.toml")
        assert type(schema.columns[0].missing) is fill


def test_aborted_run_leaves_model_and_schema(folder, monkeypatch):
    train(folder, make_grid(folder), **{"n-units": 256})
    files = [folder / owner / f"flynn.{end}" for owner in PARTIES for end in ENDINGS]
    before = [file.read_bytes() for file in files]
    (folder / "cyd.csv").write_text((folder / "cyd.csv").read_text().replace(",z,", ",y,"))
    monkeypatch.setattr(FlyNNParty, "_calibrate", refuse)

    with pytest.raises(PartyRefused, match="out of order"):
        train(folder, make_grid(folder), **{"n-units": 256})

    assert [file.read_bytes() for file in files] == before
    (pending,) = (folder / "ann").glob("*.pending")
    assert pending.name == "flynn.schema.toml.1.pending"


def refuse(*_):
    raise Refused("out of order")


def test_schema_of_another_run_is_not_read(folder):
    schema = Schema((number("a"), number("b")), "kind")
    folder_of_ann = model_folder(folder, "ann")
    (folder_of_ann / "flynn.schema.toml").write_text(schema.to_toml())
    (folder_of_ann / "flynn.schema.toml.1.pending").write_text(schema.to_toml())

    (table, draft) = party_table({**node(folder, "ann"), RUN_KEY: "2"}, "flynn")

    assert table["feature_names"] == draft.feature_names
    assert draft.column_names == ("age", "ward", "dose")


def test_node_reads_its_file_once(folder, monkeypatch):
    paths = []
    read = _app_config.read_columns
    monkeypatch.setattr(
        _app_config, "read_columns", lambda path, **o: paths.append(path) or read(path, **o)
    )

    flower_app.build_party(node(folder, "bob")).answer(DraftRequest())

    assert len(paths) == 1


@pytest.mark.parametrize("key", ["", "bob.pem"])
def test_party_with_a_key_drafts_no_number(folder, key):
    medians = pd.read_csv(folder / "bob.csv").median(numeric_only=True)
    party = flower_app.build_party(node(folder, "bob", **{"identity-key": key}))

    schema = Schema.from_toml(party.answer(DraftRequest()).toml)

    numbers = [column for column in schema.columns if isinstance(column, NumericColumn)]
    assert {c.name: c.missing for c in numbers} == {
        name: "drop" if key else medians[name] for name in ("age", "dose")
    }
    assert {c.bounds for c in numbers} == {((-np.inf, np.inf),)}


def test_party_with_a_key_refuses_gaps(folder):
    with pytest.raises(Refused, match="sends no fill value: declare a schema") as refused:
        flower_app.build_party(node(folder, "ann", **{"identity-key": "ann.pem"}))

    assert refused.value.detail == "age"
    assert make_refusal(refused.value).code == refused.value.code


def test_second_training_replaces_the_schema_of_the_first(folder):
    train(folder, make_grid(folder), **{"n-units": 256})
    (folder / "cyd.csv").write_text((folder / "cyd.csv").read_text().replace(",z,", ",y,"))

    train(folder, make_grid(folder), **{"n-units": 256})

    schema = Schema.load(folder / "ann" / "flynn.schema.toml")
    assert "ward=y" in schema.feature_names
    assert "ward=z" not in schema.feature_names


def test_declared_schema_must_be_the_agreed_one(folder):
    text = Schema.draft(read_columns(folder / "pooled.csv"), "kind").to_toml()
    (folder / "own.toml").write_text(text)

    with pytest.raises(PartyRefused, match=r"'ann' refused: .*agreed schema"):
        train(folder, make_grid(folder, ann={"schema": str(folder / "own.toml")}))


def number(name, missing=0.0):
    return NumericColumn(name, missing=missing)


def test_drafts_with_other_columns_or_kinds_are_named():
    first = Schema((number("a"), number("b")), "kind")
    for other, words in (
        (Schema((number("a"),), "kind"), "party 'p1', column 'b'"),
        (Schema((number("a"), number("b"), number("c")), "kind"), "party 'p1', column 'c'"),
        (Schema((number("a"), CategoricalColumn("b", ("x",))), "kind"), "numbers.*words"),
        (Schema((number("a"), number("b")), "class"), "label 'kind'"),
    ):
        with pytest.raises(SchemaMismatch, match=words):
            merge_drafts({"p0": first, "p1": other})


@given(st.permutations(["p0", "p1", "p2"]))
def test_merged_schema_does_not_depend_on_the_order_of_parties(names):
    drafts = {
        "p0": Schema((number("a", 1.0), CategoricalColumn("b", ("x", "y"), "keep")), "kind"),
        "p1": Schema(
            (CategoricalColumn("b", ("missing", "w"), "missing"), number("a", 5.0)), "kind"
        ),
        "p2": Schema((number("a", 2.0), CategoricalColumn("b", ("x",), "keep")), "kind"),
    }

    merged = merge_drafts({name: drafts[name] for name in names})

    assert merged == Schema(
        (number("a", 2.0), CategoricalColumn("b", ("missing", "w", "x", "y"), "missing")), "kind"
    )


FILLS = {
    "number": (0.0, [1.0, 0.0], ["drop", "keep"]),
    "no gaps": ("drop", ["drop", 1.0], ["keep"]),
    "kept gaps": ("keep", ["keep"], ["drop", 0.0]),
}


@pytest.mark.parametrize(("own", "kept", "changed"), FILLS.values(), ids=FILLS)
def test_agreed_fill_of_numbers_changes_no_cell(own, kept, changed):
    draft = Schema((number("a", own),), "kind")

    for missing in (*kept, *changed):
        misfit = find_misfit(Schema((number("a", missing),), "kind"), draft)
        assert misfit == ("a" if missing in changed else None)


CATEGORY_FILLS = {
    "gaps": ("missing", ["missing"], ["drop", "keep", "x"]),
    "no gaps": ("keep", ["keep", "missing"], ["drop", "x"]),
}


@pytest.mark.parametrize(("own", "kept", "changed"), CATEGORY_FILLS.values(), ids=CATEGORY_FILLS)
def test_agreed_fill_of_categories_changes_no_cell(own, kept, changed):
    draft = Schema((CategoricalColumn("a", ("missing", "x"), own),), "kind")

    for missing in (*kept, *changed):
        agreed = Schema((CategoricalColumn("a", ("missing", "x"), missing),), "kind")
        assert find_misfit(agreed, draft) == ("a" if missing in changed else None)


@pytest.mark.parametrize(
    "agreed",
    [
        Schema((NumericColumn("a", 0.0, 1e-9, 0.0), CategoricalColumn("b", ("x", "y"))), "kind"),
        Schema((number("a"), CategoricalColumn("b", ("x",))), "kind"),
        Schema((number("a"), number("b")), "kind"),
        Schema((number("a", "drop"), CategoricalColumn("b", ("x", "y"))), "kind"),
        Schema((number("a"), CategoricalColumn("b", ("x", "y"), "x")), "kind"),
        Schema((number("a"),), "kind"),
        Schema((number("a"), CategoricalColumn("b", ("x", "y"))), "other"),
    ],
)
def test_party_refuses_a_schema_that_changes_its_cells(agreed, tmp_path):
    draft = Schema((number("a"), CategoricalColumn("b", ("x", "y"))), "kind")
    inner = FlyNNParty("p", np.zeros((2, 3)), np.array([0, 1]))
    party = AgreeingParty(inner, draft=draft, path=tmp_path / "schema.toml")

    with pytest.raises(Refused, match="does not fit this party"):
        party.answer(AgreedSchema(agreed.to_toml()))
    with pytest.raises(Refused, match="invalid"):
        party.answer(AgreedSchema("label = 3"))

    assert not list(tmp_path.iterdir())


def test_no_schema_is_left_by_a_run_without_a_model(folder):
    (folder / "bob.csv").write_text((folder / "bob.csv").read_text().replace("dose", "dosis"))

    with pytest.raises(SchemaMismatch, match="'bob'"):
        train(folder, make_grid(folder))

    assert not list(folder.rglob("*schema.toml*"))
