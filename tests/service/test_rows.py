"""Collections of rows with numbers, categories and missing cells, against the pooled table."""

import sqlite3

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from typer.testing import CliRunner

from fedneighbors import FederatedNeighbors
from fedneighbors.cli._main import app
from fedneighbors.datasets import CategoricalColumn, NumericColumn, Schema, SetColumn
from fedneighbors.errors import DataError
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._queries import encode_query
from fedneighbors.methods.fedknn.protocol import NearestRequest
from fedneighbors.service import ServiceError
from fedneighbors.service._config import BrokerConfig, OfferSection, ProviderConfig
from fedneighbors.service._provider import OfferedObjects
from tests.seeds import cases
from tests.service.deployment import deployed

OWNERS = ["north", "south"]
SCHEMA = Schema(
    (
        NumericColumn("age", 0, 100, missing="keep"),
        NumericColumn("lactate", 0, 10, missing="keep"),
        CategoricalColumn("sex", ("f", "m"), missing="keep"),
        CategoricalColumn("ward", ("surgery", "medicine", "other"), missing="keep"),
    )
)
FILTERS = {"age": "number", "site": "text"}
SECTION = {"metric": "tabular", "schema": "patients.toml", "tie_key": "0"}
POLICY = {"level": "distances", "payload": ["sex", "site", "lactate"]}


def make_rows(n, seed):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.choice([None, 40, 41, 63.5, 120], n),
            "lactate": rng.choice([None, 1.5, 2.0, 9.25], n),
            "sex": rng.choice([None, "f", "m", "unknown"], n),
            "ward": rng.choice([None, "surgery", "medicine", "other"], n),
        }
    ).astype({"age": float, "lactate": float})


def make_queries(n, seed):
    """Return rows without cells outside of the schema, which queries may not have."""
    rows = make_rows(n, seed)
    return rows.assign(age=rows["age"].clip(upper=100), sex=rows["sex"].replace("unknown", None))


ROWS = make_rows(90, seed=0).assign(id=[str(row) for row in range(90)], site=["a", "b", None] * 30)
PARTIES = np.array(OWNERS)[np.arange(90) % 2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    (folder / "patients.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    ROWS[PARTIES == "north"].to_csv(folder / "north.csv", index=False)
    with sqlite3.connect(folder / "south.sqlite") as connection:
        ROWS[PARTIES == "south"].to_sql("patients", connection, index=False)
    return folder


def read(folder, owner, filters=FILTERS, **changes):
    sources = {
        "north": {"file": "north.csv", "id": "id"},
        "south": {
            "database": "sqlite:south.sqlite",
            "sql": "SELECT * FROM patients ORDER BY age",
            "id": "id",
        },
    }
    content = {**SECTION, "filters": filters, "source": sources[owner], "policy": POLICY}
    section = OfferSection.model_validate({**content, **changes})
    return OfferedObjects.read(owner, "patients", section, folder, secret=b"s")


HEADER, ROW = b"id,age,lactate,sex,ward\n", b"a,40,1.5,f,other\n"
LINE = b'{"id": "a", "age": 40, "lactate": 1.5, "sex": "f", "ward": "other"}\n'


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [("n.csv", HEADER + ROW, ROW.replace(b"a,", b"M\xfcller,", 1)), ("n.jsonl", LINE * 2, LINE)],
)
def test_rows_in_another_encoding_are_refused(tmp_path, name, good, bad):
    (tmp_path / "patients.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    (tmp_path / name).write_bytes(good + bad.replace(b'"a"', b'"M\xfcller"'))
    with pytest.raises(DataError, match=rf"{name} is not UTF-8 text \(line 3, byte .*save it as"):
        read(tmp_path, "north", filters={}, source={"file": name, "id": "id"}, policy={})


@pytest.fixture(scope="module")
def deployment(folder):
    private = {"epsilon": 1.0, "delta": 1e-6, "grid_s": 0.0}
    shared = {**SECTION, "providers": OWNERS}
    collections = {
        "patients": {**shared, "filters": FILTERS},
        "private": {**shared, "algorithm": "dann*", "privacy": private},
    }
    with deployed(folder, collections) as running:
        for owner in OWNERS:
            offers = {"patients": read(folder, owner)}
            without = read(folder, owner, filters={}, policy={"level": "distances"})
            without.offer = type(without.offer)("private", *list(vars(without.offer).values())[1:])
            running.start(owner, {**offers, "private": without})
        running.wait(*OWNERS)
        yield running


@pytest.fixture(scope="module")
def pooled():
    search = FederatedNeighbors(metric=SCHEMA, algorithm="baseline", random_state=0)
    columns = ROWS[list(SCHEMA.column_names)]
    return search.fit(columns, parties=PARTIES, columns=ROWS[["age", "site"]])


@pytest.mark.parametrize("algorithm", ["auto", "baseline", "dann", "eager", "hufu", "hufu+"])
def test_answers_equal_the_pooled_table(deployment, pooled, algorithm):
    search = deployment.client("patients", algorithm=algorithm)
    for seed in range(cases(9)):
        queries = make_queries(4, seed=seed + 1)
        k, where = [1, 7, 200][seed % 3], [None, {"site": "a"}, {"age": {">=": 41}}][seed % 3]

        found, objects = search.kneighbors(queries, k, where=where)

        distances, positions = pooled.kneighbors(queries, k, where=where)
        for row in range(4):
            kept = positions[row] >= 0
            assert_array_equal(found[row], distances[row][kept])
            assert [one.id for one in objects[row]] == ROWS["id"].iloc[
                positions[row][kept]
            ].tolist()
    search.close()


def test_private_answers_equal_the_pooled_table(deployment, pooled):
    queries = make_queries(2, seed=50)
    with deployment.client("private") as search:
        found, _ = search.kneighbors(queries, 5)

    distances, _ = pooled.kneighbors(queries, 5)
    assert_array_equal(found, distances)
    assert all(one["charged"] for one in search.results_)


def test_rows_can_be_mappings_and_payload_has_cells_of_the_source(deployment):
    with deployment.client("patients", payload=True) as search:
        search.kneighbors({"age": 63.5, "sex": "f"}, 90)

    neighbors = search.results_[0]["neighbors"]
    expected = ROWS.set_index("id").astype(object).where(lambda cells: cells.notna(), None)
    assert len(neighbors) == 90
    for one in neighbors:
        cells = expected.loc[one["id"]]
        assert one["payload"] == {name: cells[name] for name in POLICY["payload"]}


def test_columns_of_a_collection_are_described(deployment):
    with deployment.client("patients") as search:
        columns = search.describe()["columns"]

    assert columns == {
        "age": [0, 100],
        "lactate": [0, 10],
        "sex": ["f", "m"],
        "ward": ["surgery", "medicine", "other"],
    }


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"agee": 3}, "expected the columns .age., .lactate., .sex., .ward., got .agee."),
        ([3, 4], "expected a mapping of columns to numbers, texts or null"),
        ({"age": [3]}, "expected a mapping"),
        ({"sex": "female"}, "column 'sex': expected one of 'f', 'm', or an empty cell"),
        ({"age": 101}, "column 'age': expected a number from 0 to 100, or an empty cell"),
        ({"age": "young"}, "column 'age': expected a number from 0 to 100"),
    ],
)
def test_wrong_query_is_an_error(deployment, query, message):
    search = deployment.client("patients")
    with search, pytest.raises(ServiceError, match=message) as caught:
        search.kneighbors([query], 1)
    assert caught.value.status == 422


def test_rows_that_the_schema_drops_keep_the_numbers_of_others(folder, tmp_path, caplog):
    strict = Schema((NumericColumn("age", 0, 100), CategoricalColumn("sex", ("f", "m"))))
    (tmp_path / "patients.toml").write_text(strict.to_toml(), encoding="utf-8")
    (tmp_path / "a.csv").write_text("age,sex,w\n1,f,x\n,f,y\n3,m,z\n", encoding="utf-8")

    found = read(tmp_path, "north", source={"file": "a.csv"}, filters={}, policy={"payload": ["w"]})

    reply = found.party.answer(NearestRequest("q", encode_query(np.array([0.03, 1])), 2, None))
    assert list(reply.ids) == ["2", "0"]
    assert "a.csv: column 'age': 1 cells are missing" in caplog.text


@pytest.fixture
def provider(tmp_path):
    """Write a provider with cells outside of its schema; return its configuration."""
    columns = (*SCHEMA.columns[::2], SetColumn("codes", missing="keep"))
    (tmp_path / "patients.toml").write_text(Schema(columns).to_toml(), encoding="utf-8")
    (tmp_path / "a.csv").write_text(
        "age,sex,codes\n30,female,I10 E11\n300,male,I10;E11\n,,\nold,f,I10\n", encoding="utf-8"
    )
    written = tmp_path / "provider.toml"
    written.write_text(
        'format = 1\n[provider]\nname = "north"\nbroker = "https://127.0.0.1"\n'
        '[collections.patients]\nmetric = "tabular"\nschema = "patients.toml"\n'
        'source = { file = "a.csv" }\n',
        encoding="utf-8",
    )
    return written


def test_provider_check_counts_cells_outside_of_the_schema(provider):
    done = CliRunner().invoke(app, ["provider", "check", "--config", str(provider)])

    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "patients: 4 objects, tabular",
        "  column 'age': 1 cells are no numbers and stay missing",
        "  column 'age': 1 cells are clipped to its range",
        "  column 'sex': 2 cells are none of 'f', 'm' and stay missing",
        "  column 'codes': 1 texts have a comma, semicolon or bar within a code; codes are "
        "separated by spaces",
        "  an example from your rows, column 'age': 'old'",
        "  an example from your rows, column 'sex': 'female'",
        "  an example from your rows, column 'codes': 'I10;E11'",
    ]


def test_logs_count_cells_outside_of_the_schema_without_values(provider, caplog):
    (section,) = ProviderConfig.read(provider).collections.values()

    OfferedObjects.read("north", "patients", section, provider.parent, secret=b"s")

    assert "column 'sex': 2 cells are none of 'f', 'm' and stay missing" in caplog.text
    for value in ("female", "old", "I10"):
        assert value not in caplog.text


def test_other_columns_than_at_the_broker_are_refused(deployment, folder, tmp_path):
    other = Schema((NumericColumn("age", 0, 90, missing="keep"), *SCHEMA.columns[1:]))
    (tmp_path / "patients.toml").write_text(other.to_toml(), encoding="utf-8")
    (tmp_path / "north.csv").write_bytes((folder / "north.csv").read_bytes())

    offer = read(tmp_path, "north").offer

    with pytest.raises(Refused, match="the setting 'schema' differs"):
        deployment.broker.collections["patients"].check("north", offer)


@pytest.mark.parametrize("changes", [{"schema": None}, {"metric": "euclidean"}])
def test_schema_without_its_metric_is_an_error(tmp_path, changes):
    section = {**SECTION, "providers": OWNERS, **changes}
    path = tmp_path / "broker.toml"
    lines = [f"{key} = {value!r}" for key, value in section.items() if value is not None]
    path.write_text("format = 1\n[collections.patients]\n" + "\n".join(lines), encoding="utf-8")

    with pytest.raises(DataError, match="expected schema, the file of the columns"):
        BrokerConfig.read(path)
