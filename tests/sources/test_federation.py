"""A federation of PostGIS, a SQLite database and a file answers as one process does."""

import csv
import sqlite3

import numpy as np
import pytest

from fedneighbors import FederatedNeighbors
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._payloads import PayloadReply, PayloadRequest
from fedneighbors.methods.fedknn._provider import SOURCE_FAILED
from fedneighbors.methods.fedknn._queries import encode_query
from fedneighbors.methods.fedknn.protocol import FinishRequest, NearestRequest
from fedneighbors.service import ServiceError
from fedneighbors.service._config import OfferSection
from fedneighbors.service._offers import OfferedObjects
from tests.service.deployment import deployed

PROVIDERS = ("north", "south", "west")
ALGORITHMS = ("baseline", "dann", "eager", "hufu", "hufu+", "auto")
KINDS = {"age": "number", "site": "text"}
FILTERS = [None, {"age": {">=": 40}}, {"or": [{"site": "x"}, {"age": None}]}, {"age": {">": 99}}]
N = 600


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(7)
    points = np.column_stack([rng.integers(-12, 13, N) * 15.0, rng.integers(-5, 6, N) * 15.0])
    owners = rng.choice(PROVIDERS, N, p=[0.6, 0.3, 0.1])
    ages = [None if age < 10 else int(age) for age in rng.integers(0, 90, N)]
    return points, owners, {"age": ages, "site": rng.choice(["x", "y"], N).tolist()}


@pytest.fixture(scope="module")
def sources(postgres, rows, tmp_path_factory):
    """Return the section of each provider's source, and the folder of their files."""
    points, owners, columns = rows
    folder = tmp_path_factory.mktemp("sources")
    table = {name: [] for name in PROVIDERS}
    for row, owner in enumerate(owners):
        cells = [column[row] for column in columns.values()]
        table[owner].append((str(row), *points[row].tolist(), *cells))
    database = postgres.new_database(
        "CREATE TABLE places (id int PRIMARY KEY, g geography(Point, 4326), age int, site text)",
        "CREATE TABLE versions (version int)",
        "INSERT INTO versions VALUES (1)",
        "CREATE INDEX ON places USING gist (g)",
    )
    with postgres.connect(database) as connection, connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO places VALUES (%s, ST_Point(%s, %s)::geography, %s, %s)", table["north"]
        )
    with sqlite3.connect(folder / "south.sqlite") as connection:
        connection.execute("CREATE TABLE places (id, lon, lat, age, site)")
        connection.executemany("INSERT INTO places VALUES (?, ?, ?, ?, ?)", table["south"])
    with (folder / "west.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("id", "lon", "lat", "age", "site"), *table["west"]])
    north = {
        "kind": "postgis", "database": postgres.url(database), "table": "places", "id": "id",
        "location": "g", "version": "SELECT version FROM versions",
    }  # fmt: skip
    south = {"database": "sqlite:south.sqlite", "sql": "SELECT * FROM places", "id": "id"}
    west = {"file": "west.csv", "id": "id", "columns": ["lon", "lat"]}
    south["columns"] = west["columns"]
    return folder, {"north": north, "south": south, "west": west}


def offers(sources, provider, **policy):
    folder, sections = sources
    section = OfferSection.model_validate(
        {
            "metric": "haversine",
            "tie_key": "0",
            "filters": KINDS,
            "source": sections[provider],
            "policy": {"level": "distances", **policy},
        }
    )
    read = OfferedObjects.read(provider, "places", section, folder, secret=provider.encode())
    return {"places": read}


PRIVACY = {"epsilon": 1.0, "delta": 1e-6, "grid_s": 0.0, "max_queries": 1}
COLLECTION = {"metric": "haversine", "providers": PROVIDERS, "tie_key": "0", "filters": KINDS}


def test_answers_equal_those_of_one_process_bit_for_bit(sources, rows, tmp_path):
    points, owners, columns = rows
    rng = np.random.default_rng(8)
    with deployed(tmp_path, {"places": COLLECTION}) as deployment:
        for provider in PROVIDERS:
            deployment.start(provider, offers(sources, provider))
        deployment.wait(*PROVIDERS)
        client = deployment.client("places")
        for number in range(36):
            if number == 20:
                deployment.stop("north")
                deployment.start("north", offers(sources, "north"))
                deployment.wait(*PROVIDERS)
            algorithm = ALGORITHMS[number % len(ALGORITHMS)]
            pooled = FederatedNeighbors("haversine", algorithm).fit(
                points, parties=owners, columns=columns
            )
            client.algorithm = algorithm
            query, where = points[rng.integers(N)][None] + 0.5 * (number % 2), FILTERS[number % 4]
            k = (1, 10, 100, N + 5)[rng.integers(4)]
            distances, objects = client.kneighbors(query, k, where=where)
            expected, positions = pooled.kneighbors(query, k, where=where)
            assert distances[0].tobytes() == expected[0].tobytes(), (algorithm, k, where)
            assert [int(found.id) for found in objects[0]] == positions[0].tolist()
            assert client.results_[0]["exact"]


def test_a_private_search_over_a_database_is_exact_and_charged_once(sources, rows, tmp_path):
    points, owners, _ = rows
    private = {**COLLECTION, "algorithm": "dann*", "privacy": PRIVACY}
    pooled = FederatedNeighbors("haversine", "baseline").fit(points, parties=owners)
    with deployed(tmp_path, {"places": private}) as deployment:
        for provider in PROVIDERS:
            deployment.start(provider, offers(sources, provider))
        deployment.wait(*PROVIDERS)
        client = deployment.client("places")
        for _ in range(2):  # the second is not charged, although the provider was restarted
            distances, objects = client.kneighbors(points[:1], 12)
            expected, positions = pooled.kneighbors(points[:1], 12)
            assert distances[0].tobytes() == expected[0].tobytes()
            assert [int(found.id) for found in objects[0]] == positions[0].tolist()
            assert client.results_[0]["algorithm"] == "dann*"
            deployment.stop("north")
            deployment.start("north", offers(sources, "north"))
            deployment.wait(*PROVIDERS)
        with pytest.raises(Exception, match="budget-exceeded"):
            client.kneighbors(points[:1] + 0.5, 12)


def test_a_partial_answer_leaves_out_a_provider_whose_database_fails(sources, rows, tmp_path):
    psycopg = pytest.importorskip("psycopg")
    points, owners, _ = rows
    others = np.flatnonzero(owners != "north")
    pooled = FederatedNeighbors("haversine", "baseline").fit(points[others])
    with deployed(tmp_path, {"places": COLLECTION}) as deployment:
        for provider in PROVIDERS:
            deployment.start(provider, offers(sources, provider))
        deployment.wait(*PROVIDERS)
        client = deployment.client("places")
        partial = deployment.client("places", allow_partial=True)
        database = sources[1]["north"]["database"]
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("ALTER TABLE places RENAME TO away")
            try:
                with pytest.raises(ServiceError, match="source-failed"):
                    client.kneighbors(points[:1], 20)
                (distances,) = pooled.kneighbors(points[:1], 20)[0]
                for algorithm in ALGORITHMS:
                    partial.algorithm = algorithm
                    assert partial.kneighbors(points[:1], 20)[0][0].tobytes() == distances.tobytes()
                    assert partial.results_[0]["missing"] == {"north": SOURCE_FAILED}
                    assert not partial.results_[0]["exact"]
                assert partial.count(points[:1], 1e9).tolist() == [len(others)]
            finally:
                connection.execute("ALTER TABLE away RENAME TO places")
        assert partial.count(points[:1], 1e9).tolist() == [N]


def test_payloads_are_those_that_each_policy_allows(sources, rows, tmp_path):
    points, _, columns = rows
    allowed = {"north": ["age", "site"], "south": ["site"], "west": []}
    with deployed(tmp_path, {"places": COLLECTION}) as deployment:
        for provider in PROVIDERS:
            deployment.start(provider, offers(sources, provider, payload=allowed[provider]))
        deployment.wait(*PROVIDERS)
        client = deployment.client("places", payload=True)
        for algorithm in ALGORITHMS:
            client.algorithm = algorithm
            client.kneighbors(points[:1], 80, where={"age": {">=": 20}})
            neighbors = client.results_[0]["neighbors"]
            assert {one["provider"] for one in neighbors} == set(PROVIDERS)
            for one in neighbors:
                row, names = int(one["id"]), allowed[one["provider"]]
                assert one["payload"] == {name: columns[name][row] for name in names}
        assert set(client.results_.to_pandas().columns) >= {"age", "site", "distance"}
        client.payload = False
        client.kneighbors(points[:1], 3)
        assert "payload" not in client.results_[0]["neighbors"][0]


@pytest.mark.parametrize(
    "row", ["1", "[]", "{", '{"a": NaN}', '{"a": 1e999}', '{"a":' + "[" * 30000 + "]" * 30000 + "}"]
)
def test_rows_of_payloads_are_json_objects(row):
    with pytest.raises(ValueError, match=r"JSON|Expecting"):
        PayloadReply((row,))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_shows_no_object_that_it_did_not_return(sources, provider):
    party = offers(sources, provider, payload=["site"])["places"].party
    query = encode_query(np.array([0.0, 0.0]))
    found = party.answer(NearestRequest("q", query, 2, None))
    assert len(party.answer(PayloadRequest("q", query, tuple(found.ids))).rows) == 2
    (other,) = tuple(party.answer(NearestRequest("other", query, 3, None)).ids)[2:]
    for name, ids in (("q", (other,)), ("q", ("nobody",)), ("none", tuple(found.ids))):
        with pytest.raises(Refused):
            party.answer(PayloadRequest(name, query, ids))
    party.answer(FinishRequest(("q", "other")))


def test_filters_that_leave_few_objects_are_refused(sources, rows, tmp_path):
    points, *_ = rows
    with deployed(tmp_path, {"places": {**COLLECTION, "providers": ["north"]}}) as deployment:
        deployment.start("north", offers(sources, "north", min_filtered=50))
        deployment.wait("north")
        client = deployment.client("places")
        assert client.kneighbors(points[:1], 1, where={"age": {">=": 20}})
        for ask in (client.kneighbors, client.count):
            with pytest.raises(Exception, match="few-filtered"):
                ask(points[:1], 1, where={"age": {">=": 85}})


def test_a_private_search_has_no_filter_where_a_policy_counts_rows(sources, tmp_path):
    private = {**COLLECTION, "algorithm": "dann*", "privacy": PRIVACY, "providers": ["south"]}
    with deployed(tmp_path, {"places": private}) as deployment:
        deployment.start("south", offers(sources, "south", min_filtered=1))
        deployment.wait("south")
        for least in (0, 1000):  # all objects, and none: the same answer
            with pytest.raises(Exception, match="allows no filter of a private search"):
                deployment.client("places").kneighbors(
                    [[0.0, 0.0]], 1, where={"age": {">=": least}}
                )


def test_a_private_search_returns_no_payload(sources, tmp_path):
    private = {**COLLECTION, "algorithm": "dann*", "privacy": PRIVACY, "providers": ["south"]}
    with deployed(tmp_path, {"places": private}) as deployment:
        deployment.start("south", offers(sources, "south", payload=["site"]))
        deployment.wait("south")
        with pytest.raises(Exception, match="a private search returns no payload"):
            deployment.client("places", payload=True).kneighbors([[0.0, 0.0]], 1)


def test_the_version_of_a_database_depends_on_the_settings(sources):
    folder, sections = sources
    north = sections["north"]

    def epoch(**changes):
        party = offers((folder, {"north": {**north, **changes}}), "north")["places"].party
        query = party.source.open(np.zeros(2), None)
        query.close()
        return query.epoch

    assert epoch() == epoch()
    assert epoch(version="SELECT 2") != epoch()
    assert epoch(table="public.places") != epoch()


def test_the_failure_of_a_database_is_reported(postgres, sources, tmp_path):
    folder, sections = sources
    database = postgres.new_database(
        "CREATE TABLE places (id int, g geography(Point, 4326), age int, site text)",
        "INSERT INTO places VALUES (1, ST_Point(0, 0)::geography)",
    )
    broken = {**sections["north"], "database": postgres.url(database)}
    del broken["version"]
    with deployed(tmp_path, {"places": {**COLLECTION, "providers": ["north"]}}) as deployment:
        deployment.start("north", offers((folder, {"north": broken}), "north"))
        deployment.wait("north")
        client = deployment.client("places")
        assert client.kneighbors([[0.0, 0.0]], 1)[1][0][0].id == "1"
        with postgres.connect(database) as connection:
            connection.execute("DROP TABLE places")
        with pytest.raises(Exception, match="the source of the objects failed") as caught:
            client.kneighbors([[0.0, 0.0]], 1)
        assert "places" not in str(caught.value)
