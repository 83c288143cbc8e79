"""Agreement on columns, categories and fills; models of tables with gaps and words over Flower."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.cli._predict import predict
from fedneighbors.datasets import Schema, read_columns
from fedneighbors.datasets._reading import dataset_from_table
from fedneighbors.datasets._schema_columns import CategoricalColumn, NumericColumn
from fedneighbors.errors import PartyRefused, SchemaMismatch
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.flynn import flower_app
from fedneighbors.methods.flynn.protocol import FlyNNParty, FlyNNSettings, coordinate
from fedneighbors.tabular._agreement import AgreedSchema, AgreeingParty, merge_drafts
from tests.federation.grid import ProcessGrid
from tests.federation.test_flower_flynn import node, train

PARTIES = ("ann", "bob", "cyd")


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

    predict(folder / "bob" / "flynn.model", tmp_path / "new.csv", tmp_path / "out.csv")

    assert len((tmp_path / "out.csv").read_text().splitlines()) == 3


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


@pytest.mark.parametrize(
    "agreed",
    [
        Schema((NumericColumn("a", 0.0, 1e-9, 0.0), CategoricalColumn("b", ("x", "y"))), "kind"),
        Schema((number("a"), CategoricalColumn("b", ("x",))), "kind"),
        Schema((number("a"), number("b")), "kind"),
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
