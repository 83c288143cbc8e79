"""Sources in real PostgreSQL servers: PostGIS, pgvector and RDKit."""

import os
import socket
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from fedneighbors.datasets._molecules import Molecules, fingerprint_from_smiles
from fedneighbors.errors import DataError, SourceError
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.fedknn._filters import FilterColumns
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._radius import count_within
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.sources import PushedSource, SourceSettings
from fedneighbors.sources._pgvector import PgvectorSource
from fedneighbors.sources._postgis import PostGISSource
from fedneighbors.sources._postgres import Snapshot
from fedneighbors.sources._rdkit import RDKitSource
from fedneighbors.testing import check_source

FILTERS = [
    {"age": {">=": 70}},
    {"or": [{"site": "a'; DROP TABLE places; --"}, {"not": {"age": {"<": 85}}}]},
    {"alive": None, "age": {"in": [1, 2, 3]}},
    {"and": []},
    {"or": []},
    {"age": None},
    {"weight": {"<": 2}},
    {"site": {"in": ["a", "\0", "\ud800", None]}, "weight": {"in": []}},
    {"site": {"in": ["a", "\0", "\ud800", None]}, "weight": {"in": [3, 1.5]}},
]
KINDS = {"age": "number", "site": "text", "alive": "boolean", "weight": "number"}


def cells(n, rng):
    """Return columns with missing cells, as Python values."""
    sites = ["a", "a'; DROP TABLE places; --", "é\\", None]
    return {
        "age": [None if a == 0 else int(a) for a in rng.integers(0, 90, n)],
        "site": [sites[i] for i in rng.integers(0, 4, n)],
        "alive": [(True, False, None)[i] for i in rng.integers(0, 3, n)],
        "weight": [(1.5, None, 3.0, float("nan"))[i] for i in rng.integers(0, 4, n)],
    }


def write(connection, table, ids, objects, columns):
    """Write rows: a name, one or more cells of the object, and columns."""
    with connection.cursor().copy(f"COPY {table} FROM STDIN") as copy:
        for i, name in enumerate(ids):
            copy.write_row((name, *objects[i], *(column[i] for column in columns.values())))


COLUMNS = "age int, site text, alive boolean, weight double precision"


@pytest.fixture(scope="module")
def places(postgres):
    """Return a database of places, and its rows."""
    rng = np.random.default_rng(0)
    n = 1500
    points = np.column_stack(
        [rng.uniform(-180, 180, n), np.degrees(np.arcsin(rng.uniform(-1, 1, n)))]
    )
    points[:300] = points[:40][rng.integers(0, 40, 300)]
    points[300:340] = [[180, 10], [-180, 10], [7, 90], [-7, 90]] * 10
    columns, ids = cells(n, rng), [f"place {i}" for i in range(n)]
    name = postgres.new_database(
        f"CREATE TABLE places (id text, g geography(Point, 4326), p geometry(Point), {COLUMNS})",
        "CREATE TABLE versions (version int)",
        "INSERT INTO versions VALUES (1)",
        "CREATE ROLE places_reader LOGIN PASSWORD 'secret'",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO places_reader",
    )
    with postgres.connect(name) as connection:
        texts = [f"POINT({x!r} {y!r})" for x, y in points.tolist()]
        write(connection, "places", ids, [(f"SRID=4326;{t}", t) for t in texts], columns)
        for column in "gp":
            connection.execute(f"CREATE INDEX ON places USING gist ({column})")
        connection.execute("ANALYZE places")
    return postgres, name, points, ids, columns


def place_source(places, metric="haversine", kinds=KINDS, **changes):
    server, name, *_ = places
    location = "g" if metric == "haversine" else "p"
    options = {"database": server.url(name), "table": "public.places", "id": "id"}
    return PostGISSource(
        SourceSettings(metric, {**options, "location": location, **changes}, kinds)
    )


@pytest.mark.parametrize("metric", ["haversine", "euclidean"])
def test_places_in_postgis_are_found_exactly(places, metric):
    _, _, points, ids, columns = places
    rng = np.random.default_rng(1)
    queries = [
        *points[[0, 1, 320, 340, 341]],
        *np.column_stack([rng.uniform(-180, 180, 4), rng.uniform(-90, 90, 4)]),
        np.array([179.9999999, 10.0]),
        np.array([0.0, -90.0]),
    ]
    source = place_source(places, metric)
    try:
        check_source(
            source, points, ids, metric=metric, queries=queries, columns=columns, filters=FILTERS
        )
    finally:
        source.close()


def test_places_near_the_antipode_are_found_exactly(postgres):
    rng, query = np.random.default_rng(9), np.array([-10.1, 33.3])
    points = np.array([169.9, -33.3]) + rng.normal(size=(200, 2)) * 10.0 ** -rng.integers(
        1, 14, (200, 1)
    )
    name = postgres.new_database("CREATE TABLE far (id int, g geography(Point, 4326))")
    with postgres.connect(name) as connection, connection.cursor() as cursor:
        rows = [(i, *point) for i, point in enumerate(points.tolist())]
        cursor.executemany("INSERT INTO far VALUES (%s, ST_MakePoint(%s, %s)::geography)", rows)
        connection.execute("CREATE INDEX ON far USING gist (g)")
    source = place_source((postgres, name), kinds={}, table="far")
    try:
        ids = [str(i) for i in range(200)]
        check_source(source, points, ids, metric="haversine", queries=[query] * 3)
        pushed = PushedSource(source, metric_of("haversine"), owner="a")
        distances = np.array([metric_of("haversine").distance(query, one) for one in points])
        for radius in distances.tolist():
            assert pushed.open(query, None).count(radius) == (distances <= radius).sum()
    finally:
        source.close()


def test_lists_of_a_filter_may_be_long(places):
    source = place_source(places)
    try:
        count = source.size({"age": {"in": list(range(70_000))}})
        assert count == source.size({"not": {"age": None}})
    finally:
        source.close()


def test_no_operand_of_a_filter_is_part_of_a_statement(places):
    source = place_source(places)
    where = {"site": "a'; DROP TABLE places; --"}
    try:
        assert source.size(where) > 0
        assert source.size(None) == len(places[3])
    finally:
        source.close()


def test_an_open_query_sees_one_version_and_a_new_one_has_another_epoch(places):
    server, name, points, ids, _ = places
    with server.connect(name) as connection:
        connection.execute("CREATE TABLE changing AS SELECT * FROM places")
    version = "SELECT version FROM versions"
    source = place_source(places, table="changing", version=version)

    def change():
        with server.connect(name) as connection:
            connection.execute("DELETE FROM changing WHERE id = 'place 0'")
            connection.execute("UPDATE versions SET version = version + 1")
        return points[1:], ids[1:]

    try:
        check_source(source, points, ids, metric="haversine", queries=points[:2], change=change)
    finally:
        source.close()


def test_queries_share_few_connections(places):
    server, name, points, *_ = places
    source = place_source(places)
    pushed = PushedSource(source, metric_of("haversine"), owner="a", filters=KINDS)
    count = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'"
    with server.connect() as connection:
        queries = [pushed.open(point, None) for point in points[:200]]
        for query in queries:
            query.next(3)
        assert connection.execute(count).fetchone()[0] <= 8
        for query in queries:
            query.close()
        source.close()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"colour": "g"}, DataError, "unknown option 'colour'"),
        ({"table": None}, DataError, "expected a text for the option 'table'"),
        ({"table": "nowhere"}, SourceError, 'relation "nowhere" does not exist'),
        ({"id": "nobody"}, SourceError, 'column "nobody" of relation "places" does not'),
        ({"location": "p"}, DataError, "column p has type geometry, expected geography"),
        ({"version": "SELECT 1 WHERE false"}, SourceError, "expected one row"),
        ({"version": 1}, DataError, "expected a text for the option 'version', got 1"),
        ({"timeout_s": "30"}, DataError, "for the option 'timeout_s', got 30"),
        ({"timeout_s": True}, DataError, "for the option 'timeout_s', got True"),
        ({"timeout_s": 1e10}, DataError, "for the option 'timeout_s', got 10000000000"),
        ({"database": "postgresql:///none?host=/nowhere"}, SourceError, "cannot connect"),
        ({"database": "host=db password = hunter2"}, DataError, "has a password"),
    ],
)
def test_wrong_settings_are_refused(places, changes, error, message):
    with pytest.raises(error, match=message):
        place_source(places, **changes).longest_name()


def test_a_role_that_may_not_read_a_column_is_told_which(places, monkeypatch):
    server, name, *_ = places
    with server.connect(name) as connection:
        connection.execute("CREATE ROLE half_reader LOGIN PASSWORD 'secret'")
        connection.execute("GRANT SELECT (id, g, age) ON places TO half_reader")
    monkeypatch.setenv("PGPASSWORD", "secret")
    options = {"database": server.url(name, user="half_reader"), "table": "public.places"}
    settings = SourceSettings(
        "haversine", {**options, "id": "id", "location": "g"}, {"age": "number"}, ("site", "age")
    )
    with pytest.raises(SourceError) as info:
        PostGISSource(settings)
    assert str(info.value) == (
        "the role of the database may not read site of public.places; GRANT SELECT (site) ON "
        "public.places to it"
    )


def test_a_source_that_is_refused_leaves_no_connection(places):
    server, name, *_ = places
    count = (
        "SELECT count(*) FROM pg_stat_activity "
        f"WHERE datname = '{name}' AND application_name = 'fedneighbors'"
    )
    with server.connect() as connection:
        before = connection.execute(count).fetchone()[0]
        with pytest.raises(DataError) as info:
            place_source(places, location="p")
        end = time.monotonic() + 20
        while (found := connection.execute(count).fetchone()[0]) > before:
            assert time.monotonic() < end, found
    assert "has type geometry" in str(info.value)


def test_a_role_that_only_reads_is_enough(places, monkeypatch):
    server, name, points, *_ = places
    monkeypatch.setenv("PGPASSWORD", "secret")
    source = place_source(places, database=server.url(name, user="places_reader"))
    try:
        assert source.size(None) == len(points)
        with pytest.raises(SourceError, match="read-only transaction"):
            source.snapshot().run("DELETE FROM places", {})
    finally:
        source.close()


def test_statements_end_at_the_deadline_and_the_query_goes_on(places):
    source = place_source(places)
    snapshot = source.snapshot()
    try:
        with pytest.raises(TimeoutError):
            snapshot.run("SELECT pg_sleep(60)", {}, 0.05)
        assert snapshot.run("SELECT 1", {}, 0.5, {"enable_indexscan": "off"}) == [(1,)]
        ended = "SELECT current_setting('enable_indexscan'), current_setting('statement_timeout')"
        assert snapshot._connection.execute(ended).fetchone() == ("on", "0")
    finally:
        source.close()


def test_opening_and_counting_end_at_the_deadline(places):
    server, name, points, *_ = places
    source = place_source(places, version="SELECT version FROM versions", timeout_s=20)
    pushed = PushedSource(source, metric_of("haversine"), owner="a", filters=KINDS)
    try:
        with server.connect(name) as other, other.transaction():
            other.execute("LOCK TABLE places, versions")
            for call in (pushed.size, lambda where, end: pushed.open(points[0], where, end=end)):
                with pytest.raises(TimeoutError):
                    call(None, end=time.monotonic() + 0.2)
        assert pushed.size(None) == len(points)
        assert pushed.open(points[0], None).next(3).ids
    finally:
        source.close()


@contextmanager
def tcp_port(server):
    """Pass bytes of a TCP port on to a server's socket during the block."""

    def copy(source, sink):
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def serve():
        with suppress(OSError):
            while True:
                client, up = listener.accept()[0], socket.socket(socket.AF_UNIX)
                up.connect(str(server.folder / ".s.PGSQL.5432"))
                for ends in ((client, up), (up, client)):
                    threading.Thread(target=copy, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


@pytest.mark.parametrize(("options", "milliseconds"), [({}, 30_000), ({"tcp_user_timeout": 5}, 5)])
def test_a_database_that_vanishes_is_noticed(places, options, milliseconds):
    with tcp_port(places[0]) as port:
        url = places[0].url(places[1], host="127.0.0.1", port=port, **options)
        snapshot = Snapshot(url, None, 30.0, None).acquire()
        try:
            assert snapshot.run("SELECT 1", {}) == [(1,)]
            number = os.dup(snapshot._connection.fileno())
            with socket.socket(fileno=number) as connection:
                assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
                found = [
                    connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
                    for name in names
                ]
            assert found == [10, 5, 4, milliseconds]
        finally:
            snapshot.close()


def test_a_statement_without_a_deadline_ends_at_the_timeout(places):
    snapshot = Snapshot(places[0].url(places[1]), None, 0.5, None).acquire()
    try:
        with pytest.raises(SourceError, match="stopped a statement"):
            snapshot.run("SELECT pg_sleep(60)", {})
    finally:
        snapshot.close()


def test_a_lost_connection_is_an_error_and_the_next_query_has_another(places):
    server, name, points, *_ = places
    source = place_source(places)
    pushed = PushedSource(source, metric_of("haversine"), owner="a", filters=KINDS)
    query = pushed.open(points[0], None)
    assert query.next(2).ids
    with server.connect() as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = '{name}' AND application_name = 'fedneighbors'"
        )
    try:
        with pytest.raises(SourceError, match="the database failed"):
            query.next(500)
        query.close()
        assert len(pushed.open(points[0], None).next(5).ids) == 5
    finally:
        source.close()


@pytest.mark.parametrize("statement", ["NULL", "'place 1'"])
def test_names_must_exist_and_be_unique(places, statement):
    server, name, points, *_ = places
    insert = f"INSERT INTO places SELECT {statement}, g, p, 999 FROM places WHERE id = 'place 1'"
    with server.connect(name) as connection:
        connection.execute(insert)
    source = place_source(places)
    pushed = PushedSource(source, metric_of("haversine"), owner="a", filters=KINDS)
    try:
        with pytest.raises(SourceError, match="column of names"):
            pushed.open(points[1], None).next(50)
    finally:
        source.close()
        with server.connect(name) as connection:
            connection.execute("DELETE FROM places WHERE age = 999")


def vectors(n=800, d=12):
    """Return float32 vectors at the limits of the format, with equal and almost equal ones."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(n, d)).astype(np.float32)
    rows[:100] = rows[:10][rng.integers(0, 10, 100)]
    rows[100:110] *= np.float32(1e-25)
    rows[110:120] *= np.float32(1e18)
    rows[120:130] *= np.float32(1e30)
    rows[130:300] = np.nextafter(rows[400], np.float32(np.inf))
    return rows


@pytest.fixture(scope="module")
def vector_table(pgvector):
    rows = vectors()
    rng = np.random.default_rng(3)
    columns, ids = cells(len(rows), rng), [str(i) for i in range(len(rows))]
    name = pgvector.new_database(f"CREATE TABLE items (id int, v vector, {COLUMNS})")
    with pgvector.connect(name) as connection:
        write(connection, "items", ids, [(str(row),) for row in rows.tolist()], columns)
        connection.execute(f"ALTER TABLE items ALTER v TYPE vector({rows.shape[1]})")
        connection.execute("CREATE INDEX ON items USING hnsw (v vector_l2_ops)")
        connection.execute("ANALYZE items")
    return pgvector.url(name), rows, ids, columns


def vector_source(vector_table, metric, kinds=KINDS, **changes):
    options = {"database": vector_table[0], "table": "items", "id": "id", "vector": "v"}
    return PgvectorSource(SourceSettings(metric, {**options, **changes}, kinds))


@pytest.mark.parametrize("metric", ["euclidean", "manhattan", "cosine", "inner_product"])
def test_vectors_in_pgvector_are_found_exactly(vector_table, metric):
    _, rows, ids, columns = vector_table
    rng = np.random.default_rng(4)
    points = rows.astype(float)
    queries = [
        points[0],
        points[131] * (1 + 1e-9),
        points[105],
        points[115],
        points[125],
        *(rng.normal(size=(4, rows.shape[1])) * 10.0 ** np.array([[-40], [0], [3], [30]])),
    ]
    source = vector_source(vector_table, metric)
    try:
        check_source(
            source, points, ids, metric=metric, queries=queries, columns=columns,
            filters=FILTERS[:2],
        )  # fmt: skip
    finally:
        source.close()


def test_products_that_overflow_float32_are_found_exactly(pgvector):
    rows = np.vstack([np.ones((60, 3)) + np.arange(60)[:, np.newaxis], [[-4e13, 3e13, 3e13]]])
    name = pgvector.new_database("CREATE TABLE items (id int, v vector(3))")
    with pgvector.connect(name) as connection, connection.cursor() as cursor:
        texts = [(i, str(row)) for i, row in enumerate(rows.astype(np.float32).tolist())]
        cursor.executemany("INSERT INTO items VALUES (%s, %s)", texts)
    source = vector_source((pgvector.url(name),), "inner_product", {})
    points, ids = rows.astype(np.float32).astype(float), [str(i) for i in range(61)]
    try:
        check_source(source, points, ids, metric="inner_product", queries=[np.full(3, 1e25)] * 3)
    finally:
        source.close()


def test_an_approximate_index_says_so(vector_table):
    source = vector_source(vector_table, "euclidean", exact=False)
    pushed = PushedSource(source, metric_of("euclidean"), owner="a", filters=KINDS)
    try:
        query = pushed.open(vector_table[1][0].astype(float), None)
        found = query.next(5)
        assert not query.exact
        assert len(found.ids) == 5
        party = Provider("a", pushed, decode=lambda _: vector_table[1][0].astype(float))
        counted = run(count_within(b"", 2.0, name="q"), [party]).result
        assert not counted.exact
        with pytest.raises(SourceError, match="expected an exact source"):
            check_source(source, vector_table[1].astype(float), vector_table[2], metric="euclidean")
    finally:
        source.close()


@pytest.mark.parametrize("exact", [0, "false", None])
def test_only_a_boolean_says_whether_an_index_is_exact(vector_table, exact):
    with pytest.raises(DataError, match="expected true or false for the option 'exact', got"):
        vector_source(vector_table, "euclidean", exact=exact)


def test_half_precision_is_refused_as_it_rounds_queries(pgvector):
    name = pgvector.new_database("CREATE TABLE items AS SELECT 1 AS id, '[1, 2]'::halfvec AS v")
    table = (pgvector.url(name),)
    with pytest.raises(DataError, match="has type halfvec, expected vector"):
        vector_source(table, "euclidean", {})
    vector_source(table, "euclidean", {}, exact=False).close()


def test_a_vector_of_zeros_is_refused_for_the_cosine(pgvector):
    name = pgvector.new_database(
        "CREATE TABLE items (id int, v vector)", "INSERT INTO items VALUES (1, '[0, 2]')",
        "INSERT INTO items VALUES (2, '[0, 0]')",
        "CREATE TABLE halves AS SELECT id, v::halfvec AS v FROM items",
    )  # fmt: skip
    table = (pgvector.url(name),)

    vector_source(table, "euclidean", {}).close()
    for changes in ({}, {"exact": False}, {"exact": False, "table": "halves"}):
        with pytest.raises(DataError, match=r"zeros, which has no angle; .* WHERE") as info:
            vector_source(table, "cosine", {}, **changes)
        rows = f"{changes.get('table', 'items')} {str(info.value).rpartition(': ')[2]}"
        with pgvector.connect(name) as connection:
            assert connection.execute(f"SELECT count(*) FROM {rows}").fetchone() == (1,)


MOLECULES = ["CCO", "CCN", "CCC", "c1ccccc1", "c1ccccc1O", "Cc1ccccc1", "CC(=O)O", "CC(=O)N"]


@pytest.fixture(scope="module")
def molecules(postgres):
    heads = ["", "C", "CC", "N", "OC", "FC", "ClC", "O=C(O)C", "N#CC", "CC(C)"]
    smiles = [head + tail for head in heads for tail in [*MOLECULES, "CCO"]]
    columns = cells(len(smiles), np.random.default_rng(5))
    ids = [f"m{i}" for i in range(len(smiles))]
    name = postgres.new_database(
        f"CREATE TABLE molecules (id text, m mol, {COLUMNS})",
        "SET rdkit.morgan_fp_size = 2048",
    )
    with postgres.connect(name) as connection:
        write(connection, "molecules", ids, [(text,) for text in smiles], columns)
        connection.execute("SET rdkit.morgan_fp_size = 2048")
        connection.execute(
            "CREATE TABLE prints AS SELECT id, m, morganbv_fp(m, 2) AS f, age, site, alive, weight "
            "FROM molecules"
        )
        connection.execute("CREATE INDEX ON prints USING gist (f)")
    return postgres.url(name), smiles, ids, columns


def test_molecules_in_rdkit_are_found_exactly(molecules):
    url, smiles, ids, columns = molecules
    options = {"database": url, "table": "prints", "id": "id", "fingerprint": "f"}
    source = RDKitSource(SourceSettings("tanimoto", options, KINDS | {"m": "molecule"}))
    prints = np.array([fingerprint_from_smiles(text) for text in smiles])
    columns = {**columns, "m": Molecules(smiles)}
    filters = [
        *FILTERS[:2],
        {"m": {"substructure": "[#6]-[OX2H]"}, "age": {"<": 60}},
        {"not": {"m": {"substructure": "[R]"}}},
        {"m": None},
    ]
    try:
        check_source(
            source, prints, ids, metric="tanimoto", queries=prints[:12], columns=columns,
            filters=filters,
        )  # fmt: skip
    finally:
        source.close()


def test_a_column_of_another_type_is_an_error_that_names_the_right_ones(pgvector, molecules):
    name = pgvector.new_database("CREATE TABLE items (id int, v sparsevec(3))")
    table = (pgvector.url(name),)
    with pytest.raises(DataError, match="column v has type sparsevec, expected vector for"):
        vector_source(table, "euclidean", {})
    with pytest.raises(DataError, match="has type sparsevec, expected vector or halfvec for"):
        vector_source(table, "euclidean", {}, exact=False)
    options = {"database": molecules[0], "table": "molecules", "id": "id", "fingerprint": "m"}
    with pytest.raises(DataError, match="column m has type mol, expected bfp for"):
        RDKitSource(SourceSettings("tanimoto", options))


@pytest.mark.parametrize("metric", ["haversine", "tanimoto"])
def test_sources_refuse_other_metrics(vector_table, metric):
    with pytest.raises(DataError, match="expected a metric among"):
        vector_source(vector_table, metric)


def test_names_of_columns_may_have_any_characters(postgres):
    names = ["%", "100% s", 'a"b', "%(v0)s", "{}", "place's", "\\"]
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    table = f"odd.{names[2]}%"
    database = postgres.new_database(
        "CREATE SCHEMA odd",
        f'CREATE TABLE odd."a""b%" ({quoted[0]} text, {quoted[1]} geography(Point, 4326), '
        f"{quoted[2]} int, {quoted[3]} text, {quoted[4]} numeric, {quoted[5]} boolean, "
        f"{quoted[6]} real)",
        "INSERT INTO odd.\"a\"\"b%\" VALUES ('50%', ST_MakePoint(1, 2), 3, '%', 0.1, true, 2.5)",
    )
    kinds = dict(zip(names[2:], ["number", "text", "number", "boolean", "number"], strict=True))
    options = {
        "database": postgres.url(database), "table": table, "id": names[0], "location": names[1],
        "version": "SELECT count(*) FROM pg_class WHERE relname LIKE '%b\\%'",
    }  # fmt: skip
    source = PostGISSource(SourceSettings("haversine", options, kinds, tuple(names[2:])))
    pushed = PushedSource(source, metric_of("haversine"), owner="a", filters=kinds)
    where = dict(zip(names[2:], [3, "%", 0.1, True, {">=": 2.5}], strict=True))
    try:
        assert pushed.size(where) == 1
        assert pushed.size({"not": where}) == 0
        query = pushed.open(np.zeros(2), where)
        assert query.next(2).ids == ("50%",)
        assert query.payload(["50%"]) == [
            dict(zip(names[2:], [3, "%", 0.1, True, 2.5], strict=True))
        ]
    finally:
        source.close()


def test_filters_of_random_columns_are_as_in_memory(places):
    columns = places[4]
    table = FilterColumns.of(columns, len(places[3]), kinds=KINDS)
    source, rng = place_source(places), np.random.default_rng(6)
    symbols = [">=", ">", "<=", "<", "=="]
    try:
        for _ in range(40):
            parts = [
                {"age": {symbols[rng.integers(5)]: int(rng.integers(-1, 95))}},
                {"site": {"in": ["a", None][: rng.integers(3)]}},
                {"weight": [1.5, 2, None][rng.integers(3)]},
                {"alive": [True, False, None][rng.integers(3)]},
            ]
            where = {"or": parts[: rng.integers(1, 3)], "not": {"and": parts[rng.integers(4) :]}}
            assert source.size(where) == int(table.match(where).sum()), where
    finally:
        source.close()


@pytest.fixture
def line(postgres):
    """Return a database of 50 points at the distances 1 to 50 from the origin, and a view."""
    return postgres, postgres.new_database(
        'CREATE COLLATION blind (provider = icu, locale = "und-u-ks-level2", '
        "deterministic = false)",
        "CREATE TABLE line AS SELECT i AS id, ST_MakePoint(i, 0) AS p, date '2020-01-01' + i "
        "AS day, (array['a', 'A', 'b'])[1 + i % 3] COLLATE blind AS site "
        "FROM generate_series(1, 50) AS i",
        "CREATE VIEW looked_at AS SELECT * FROM line",
    )


@contextmanager
def line_source(line, **changes):
    source = place_source(line, "euclidean", **{"kinds": {}, "table": "line", **changes})
    try:
        yield source, PushedSource(source, metric_of("euclidean"), owner="a")
    finally:
        source.close()


def load_again(connection):
    connection.execute("CREATE TEMP TABLE kept AS SELECT * FROM line")
    connection.execute("TRUNCATE line")
    connection.execute("INSERT INTO line SELECT * FROM kept")


@pytest.mark.parametrize("table", ["line", "looked_at"])
def test_a_table_keeps_its_rows_while_a_query_is_open(line, table):
    psycopg = pytest.importorskip("psycopg")
    server, name = line
    with line_source(line, table=table) as (_, pushed), server.connect(name) as connection:
        query = pushed.open(np.zeros(2), None)
        assert len(query.next(5).ids) == 5
        connection.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable), connection.transaction():
            load_again(connection)
        assert len(query.next(60).ids) == 45
        assert query.count(40.0) == 40
        query.close()
        with connection.transaction():
            load_again(connection)


@pytest.mark.parametrize("table", ["line", "looked_at"])
def test_a_query_that_waits_for_a_table_sees_its_new_rows(line, table):
    server, name = line
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with line_source(line, table=table) as (_, pushed), server.connect(name) as connection:
        found = []
        search = threading.Thread(
            target=lambda: found.extend(pushed.open(np.zeros(2), None).next(60).ids)
        )
        with connection.transaction():
            load_again(connection)
            search.start()
            end = time.monotonic() + 20
            while not connection.execute(waiting).fetchone()[0]:
                assert time.monotonic() < end
        search.join(20)
    assert len(found) == 50


def test_texts_are_compared_character_by_character(line):
    with line_source(line, kinds={"site": "text"}) as (source, _):
        sizes = [source.size({"site": site}) for site in ("a", "A", "b", "B")]
        assert sizes == [16, 17, 17, 0]
        assert source.size({"not": {"site": "a"}}) == 34
        assert source.size({"site": {"in": ["a", "B"]}}) == 16


def test_dates_as_text_do_not_depend_on_the_role(line):
    server, name = line
    with server.connect(name) as connection:
        connection.execute(f"ALTER DATABASE {name} SET datestyle = 'German'")
    with line_source(line, kinds={"day": "text"}, id="day") as (source, pushed):
        assert source.size({"day": "2020-01-05"}) == 1
        assert pushed.open(np.zeros(2), None).next(1).ids == ("2020-01-02",)


def test_shapes_that_come_later_are_an_error_of_counts(line):
    server, name = line
    with line_source(line) as (_, pushed), server.connect(name) as connection:
        connection.execute("INSERT INTO line VALUES (99, 'POLYGON((0 0, 1 0, 1 1, 0 0))')")
        query = pushed.open(np.zeros(2), None)
        for call in (lambda: query.count(5.0), lambda: query.next(3)):
            with pytest.raises(SourceError, match="must have type POINT"):
                call()


def test_distances_that_postgis_cannot_express_are_found_exactly(line):
    server, name = line
    points = np.random.default_rng(5).normal(size=(60, 2)) * 1e100
    with server.connect(name) as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM line")
        rows = [(i, *point) for i, point in enumerate(points.tolist())]
        cursor.executemany("INSERT INTO line VALUES (%s, ST_MakePoint(%s, %s))", rows)
    with line_source(line) as (source, _):
        ids = [str(i) for i in range(60)]
        check_source(source, points, ids, metric="euclidean", queries=[np.zeros(2), points[0]])


def test_the_reference_system_of_a_column_is_checked(postgres):
    name = postgres.new_database(
        "CREATE TABLE new (id int, p geometry(Point, 3857), g geography(Point, 4326))",
        "CREATE TABLE mixed AS SELECT 1 AS id, 'SRID=4269;POINT(1 2)'::geography AS g, "
        "unnest(array['SRID=3857;POINT(1 2)', 'POINT(1 2)'])::geometry AS p",
    )
    with pytest.raises(DataError, match="expected one SRID in the column p, got 0, 3857"):
        place_source((postgres, name), "euclidean", {}, table="mixed")
    with pytest.raises(DataError, match="expected the SRID 4326 in the column g, got 4269"):
        place_source((postgres, name), kinds={}, table="mixed")
    with line_source((postgres, name), table="new") as (_, pushed):
        assert pushed.open(np.zeros(2), None).next(1).exhausted
        with postgres.connect(name) as connection:
            connection.execute("INSERT INTO new VALUES (7, 'SRID=3857;POINT(1 2)')")
        pushed.candidates.close()
        assert pushed.open(np.zeros(2), None).next(1).ids == ("7",)


def test_an_empty_table_of_vectors_has_the_length_of_its_type(pgvector):
    name = pgvector.new_database(
        "CREATE TABLE new (id int, v vector(3))", "CREATE TABLE any_length (id int, v vector)"
    )
    with pytest.raises(DataError, match="has no vectors, so that their length is unknown"):
        vector_source((pgvector.url(name),), "euclidean", {}, table="any_length")
    source = vector_source((pgvector.url(name),), "euclidean", {}, table="new")
    pushed = PushedSource(source, metric_of("euclidean"), owner="a")
    try:
        assert pushed.open(np.zeros(3), None).next(1).exhausted
        with pytest.raises(ValueError, match="expected 3 numbers, got 2"):
            pushed.open(np.zeros(2), None)
    finally:
        source.close()


def test_fingerprints_of_another_length_are_an_error(postgres):
    insert = "INSERT INTO prints VALUES ({}, bfp_from_binary_text('\\x{}'))"
    name = postgres.new_database("CREATE TABLE prints (id int, f bfp)", insert.format(1, "010203"))
    options = {"database": postgres.url(name), "table": "prints", "id": "id", "fingerprint": "f"}
    source = RDKitSource(SourceSettings("tanimoto", options))
    pushed = PushedSource(source, metric_of("tanimoto"), owner="a")
    with postgres.connect(name) as connection:
        connection.execute(insert.format(2, "0102"))
    try:
        with pytest.raises(SourceError, match="expected fingerprints of 3 bytes, got one of 2"):
            pushed.open(np.array([1, 2, 3], np.uint8), None).next(2)
    finally:
        source.close()


def test_a_payload_may_have_many_columns(postgres):
    columns = [f"c{i}" for i in range(60)]
    name = postgres.new_database(
        "CREATE TABLE wide AS SELECT 1 AS id, ST_MakePoint(0, 0) AS p, "
        + ", ".join(f"{i} AS c{i}" for i in range(60))
    )
    options = {"database": postgres.url(name), "table": "wide", "id": "id", "location": "p"}
    source = PostGISSource(SourceSettings("euclidean", options, {}, tuple(columns)))
    query = PushedSource(source, metric_of("euclidean"), owner="a").open(np.zeros(2), None)
    try:
        assert query.next(1).ids == ("1",)
        assert query.payload(["1"]) == [dict(zip(columns, range(60), strict=True))]
    finally:
        source.close()
