"""Collections from databases and files of values, against brute force."""

import json
import sqlite3
import threading
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors._lazy import optional_module
from fedneighbors.cli._main import app
from fedneighbors.datasets._molecules import fingerprint_from_smiles, graph_from_smiles
from fedneighbors.errors import DataError, MissingDataError, SourceError
from fedneighbors.federation._messages import encode
from fedneighbors.methods.fedknn._filters import filter_text
from fedneighbors.methods.fedknn._payloads import PayloadRequest
from fedneighbors.methods.fedknn._queries import FilteredQuery, encode_query
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.protocol import FinishRequest, NearestRequest
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service._config import OfferSection, ProviderConfig, SourceSection
from fedneighbors.service._doctor import _examine_sources
from fedneighbors.service._loading import Forgotten, write_snapshot
from fedneighbors.service._offers import OfferedObjects

RNG = np.random.default_rng(0)
VECTORS = np.round(RNG.normal(size=(60, 3)), 1).astype(np.float32)  # with ties
AGES = [None if row % 7 == 3 else row % 10 for row in range(60)]
IDS = [f"p{row:02}" for row in range(60)]
SMILES = ["CCO", "CCN", "c1ccccc1", "CC(=O)O", "CCCC", "CCO"]
FILTERS = {"age": "number", "adult": "boolean"}
SECTION = {"metric": "euclidean", "filters": FILTERS}


def read(folder, source, metric="euclidean", filters=None, **options):
    section = {"metric": metric, "filters": filters or {}, "source": {"id": "id", **source}}
    return OfferedObjects.read(
        "north", "points", OfferSection.model_validate(section), folder, secret=b"s", **options
    )


def search(found, query, k, where=None):
    """Return distances and names of a provider's nearest objects."""
    content = encode_query(query)
    if where is not None:
        content = encode(FilteredQuery(content, filter_text(where)))
    reply = found.party.answer(NearestRequest("q", content, k, None))
    found.party.answer(FinishRequest(("q",)))
    return list(reply.distances), list(reply.ids)


@pytest.fixture(scope="module")
def postgres_url(postgres):
    name = postgres.new_database(
        "CREATE TABLE points (id text, v real[], age int, adult boolean)",
        "CREATE ROLE reader LOGIN PASSWORD 'opensesame'",
        "GRANT SELECT ON points TO reader",
        "CREATE TABLE secrets (id text)",
    )
    with postgres.connect(name) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO points VALUES (%s, %s, %s, %s)", rows())
    return postgres.url(name, "reader")


@pytest.fixture
def password(tmp_path):
    (tmp_path / "password").write_text("opensesame\n", encoding="utf-8")
    return "password"


def rows():
    for name, vector, age in zip(IDS, VECTORS.tolist(), AGES, strict=True):
        yield name, vector, age, None if age is None else age >= 5


def make_pgvector(folder, request):
    server = request.getfixturevalue("pgvector")
    name = server.new_database("CREATE TABLE points (id text, v vector(3), age int, adult boolean)")
    with server.connect(name) as connection, connection.cursor() as cursor:
        texts = ((one, str(vector), *rest) for one, vector, *rest in rows())
        cursor.executemany("INSERT INTO points VALUES (%s, %s, %s, %s)", texts)
    return {"database": server.url(name), "sql": "SELECT * FROM points"}


def make_postgres(folder, request):
    (folder / "password").write_text("opensesame", encoding="utf-8")
    url = request.getfixturevalue("postgres_url")
    return {"database": url, "password_file": "password", "sql": "SELECT * FROM points"}


def make_duckdb(folder, request):
    duckdb = optional_module("duckdb", "sql")
    with duckdb.connect(str(folder / "points.duckdb")) as connection:
        connection.execute("CREATE TABLE points (id text, v float[3], age int, adult boolean)")
        connection.executemany("INSERT INTO points VALUES (?, ?, ?, ?)", list(rows()))
    return {"database": "duckdb:points.duckdb", "sql": "SELECT * FROM points"}


def make_sqlite(folder, request):
    connection = sqlite3.connect(folder / "points.sqlite")
    connection.execute("CREATE TABLE points (id text, v text, age int, adult boolean)")
    texts = ((one, json.dumps(vector), *rest) for one, vector, *rest in rows())
    connection.executemany("INSERT INTO points VALUES (?, ?, ?, ?)", texts)
    connection.commit()
    connection.close()
    return {"database": "sqlite:points.sqlite", "sql": "SELECT * FROM points"}


def make_json(folder, request):
    names = ("id", "v", "age", "adult")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows()]
    (folder / "points.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return {"file": "points.jsonl"}


def arrow_table():
    pyarrow = optional_module("pyarrow", "data")
    columns = dict(zip(("id", "v", "age", "adult"), zip(*rows(), strict=True), strict=True))
    columns["v"] = pyarrow.array(columns["v"], pyarrow.list_(pyarrow.float32()))
    return pyarrow.table(columns)


def make_arrow(folder, request):
    feather = optional_module("pyarrow.feather", "data")
    feather.write_feather(arrow_table(), str(folder / "points.feather"))
    return {"file": "points.feather"}


def make_parquet(folder, request):
    parquet = optional_module("pyarrow.parquet", "data")
    parquet.write_table(arrow_table(), str(folder / "points.parquet"))
    return {"file": "points.parquet"}


MAKERS = [
    make_postgres,
    make_pgvector,
    make_duckdb,
    make_sqlite,
    make_json,
    make_arrow,
    make_parquet,
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("where", "keep"),
    [
        (None, lambda age: True),
        ({"age": {">=": 5}}, lambda age: age is not None and age >= 5),
        ({"adult": True}, lambda age: age is not None and age >= 5),
        ({"age": None}, lambda age: age is None),
    ],
)
def test_a_source_is_searched_exactly(tmp_path, request, make, where, keep):
    found = read(tmp_path, make(tmp_path, request), filters=FILTERS)
    points = VECTORS.astype(np.float64)
    for query in (points[4], np.array([0.1, -0.3, 0.7])):
        distances = [metric_of("euclidean").distance(query, point) for point in points]
        kept = [row for row in range(60) if keep(AGES[row])]
        expected = sorted(distances[row] for row in kept)[:8]
        got, names = search(found, query, 8, where)
        assert got == expected
        assert len(set(names)) == len(names)
        assert [distances[IDS.index(name)] for name in names] == expected
        assert set(names) <= {IDS[row] for row in kept}


def test_all_sources_of_the_same_rows_have_one_epoch(tmp_path, request):
    found = [read(tmp_path, make(tmp_path, request), filters=FILTERS) for make in MAKERS]
    assert len({one.party.source._epoch for one in found}) == 1
    source = {"database": "sqlite:points.sqlite"}
    for sql, is_same in (("age + 0", True), ("age + 1", False)):
        query = f"SELECT id, v, {sql} AS age, adult FROM points ORDER BY random()"
        again = read(tmp_path, {**source, "sql": query}, filters=FILTERS)
        assert (again.party.source._epoch == found[0].party.source._epoch) is is_same


def test_a_query_that_waits_for_a_table_reads_its_new_rows(tmp_path, postgres):
    name = postgres.new_database(
        "CREATE TABLE points AS SELECT i AS id, array[i, 0] AS v FROM generate_series(1, 9) AS i"
    )
    source = {"database": postgres.url(name), "sql": "SELECT * FROM points"}
    waiting, found = "SELECT count(*) FROM pg_locks WHERE NOT granted", []
    with postgres.connect(name) as connection:
        reading = threading.Thread(target=lambda: found.append(read(tmp_path, source)))
        with connection.transaction():
            connection.execute("TRUNCATE points")
            connection.execute("INSERT INTO points VALUES (1, array[1, 0]), (2, array[2, 0])")
            reading.start()
            end = time.monotonic() + 20
            while not connection.execute(waiting).fetchone()[0]:
                assert time.monotonic() < end
        reading.join(20)
    assert search(found[0], np.zeros(2), 5) == ([1.0, 2.0], ["1", "2"])


@pytest.mark.parametrize("make", MAKERS[:4])
def test_a_snapshot_is_the_result_of_the_query(tmp_path, request, make):
    source, out = {**make(tmp_path, request), "id": "id"}, tmp_path / "copy.arrow"
    whole = read(tmp_path, source, filters=FILTERS)
    assert write_snapshot(SourceSection.model_validate(source), tmp_path, out) == len(IDS)
    copy = read(tmp_path, {"file": out.name}, filters=FILTERS)
    assert copy.party.source._epoch == whole.party.source._epoch
    assert search(copy, VECTORS[3], 60) == search(whole, VECTORS[3], 60)
    assert out.stat().st_mode & 0o777 == 0o600


def test_a_snapshot_leaves_out_forgotten_objects(tmp_path, request):
    source, out = {**MAKERS[0](tmp_path, request), "id": "id"}, tmp_path / "copy.arrow"
    section, forgotten = SourceSection.model_validate(source), tmp_path / "forgotten"
    Forgotten.add(forgotten, "points", IDS[:2])
    left_out = Forgotten.read(forgotten, "points")
    assert write_snapshot(section, tmp_path, out, forgotten=left_out) == len(IDS) - 2
    copy = read(tmp_path, {"file": out.name}, filters=FILTERS)
    assert set(search(copy, VECTORS[3], 60)[1]) == set(IDS[2:])


def test_points_of_postgis_are_places(tmp_path, postgres):
    name = postgres.new_database(
        "CREATE TABLE places (id text, at geography(point), flat geometry(point, 32630))",
        "INSERT INTO places SELECT i, ST_MakePoint(i * 0.5, i * 0.25)::geography, "
        "ST_SetSRID(ST_MakePoint(i, -i), 32630) FROM generate_series(1, 20) AS i",
    )
    source = {"database": postgres.url(name), "sql": "SELECT id, at FROM places"}
    found = read(tmp_path, source, "haversine")
    query = np.array([3.0, 2.0])
    metric = metric_of("haversine")
    distances = {str(i): metric.distance(query, np.array([i / 2, i / 4])) for i in range(1, 21)}
    expected = sorted(distances.values())[:5]
    got, names = search(found, query, 5)
    assert got == expected
    assert [distances[one] for one in names] == expected
    columns = "SELECT id, ST_X(at::geometry) lon, ST_Y(at::geometry) lat FROM places"
    assert search(read(tmp_path, {**source, "sql": columns}, "haversine"), query, 5)[0] == expected
    source["sql"] = "SELECT id, flat FROM places"
    with pytest.raises(DataError, match=r"'flat': expected a point in degrees .* got SRID 32630"):
        read(tmp_path, source, "haversine")
    flat = read(tmp_path, source)
    assert search(flat, np.array([3.0, -3.0]), 1) == ([0.0], ["3"])


def test_molecules_of_rdkit_are_graphs_and_fingerprints(tmp_path, postgres):
    values = ", ".join(f"('m{row}', '{one}')" for row, one in enumerate(SMILES))
    name = postgres.new_database(
        "CREATE TABLE molecules (id text, m mol)", f"INSERT INTO molecules VALUES {values}"
    )
    source = {"database": postgres.url(name)}
    smiles = "SELECT id, mol_to_smiles(m) AS smiles FROM molecules"
    text = read(tmp_path, {**source, "sql": smiles}, "graph_edit")
    assert search(text, graph_from_smiles("CCO"), 3)[0][:2] == [0, 0]
    expected = [fingerprint_from_smiles(one) for one in SMILES]
    metric = metric_of("tanimoto")
    distances = sorted(metric.distance(expected[1], one) for one in expected)
    with postgres.connect(name) as connection:
        connection.execute(f"ALTER DATABASE {name} SET rdkit.morgan_fp_size = 2048")
    for sql in (smiles, "SELECT id, bfp_to_binary_text(morganbv_fp(m, 2)) FROM molecules"):
        found = read(tmp_path, {**source, "sql": sql}, "tanimoto")
        assert search(found, expected[1], 6)[0] == distances


def test_bits_words_strings_and_graphs_are_read(tmp_path, postgres):
    graph = "t # one\nv 0 C\nv 1 O\ne 0 1 1\n"
    name = postgres.new_database(
        "CREATE TYPE colour AS ENUM ('red', 'green')",
        "CREATE TABLE things (id int, bits bit(16), words text[], name text, hue colour, g text)",
        "INSERT INTO things VALUES (1, B'1000000000000001', '{a,b}', 'alpha', 'red', "
        f"'{graph}'), (2, B'1100000000000000', '{{b}}', 'beta', 'green', '{graph[8:]}')",
    )

    def things(column, metric, **options):
        sql = f"SELECT id, {column}, hue FROM things"
        source = {"database": postgres.url(name), "sql": sql, "columns": [column]}
        return read(tmp_path, source, metric, **options)

    bits = np.array([1, 128], np.uint8)
    assert search(things("bits", "tanimoto"), bits, 1) == ([0.0], ["1"])
    assert search(things("words", "jaccard"), frozenset("b"), 1) == ([0.0], ["2"])
    words = things("name", "edit", filters={"hue": "text"})
    assert search(words, "beta", 2, {"hue": "red"})[1] == ["1"]
    assert search(things("g", "graph_edit"), graph_from_smiles("CO"), 2)[0] == [0, 0]


@pytest.mark.parametrize(
    ("cells", "metric", "message"),
    [
        ('"id": 1, "v": [1, 1%s]' % ("0" * 400), "euclidean", "column 'v': expected a list of num"),
        ('"id": 1, "x": 1%s, "y": 2' % ("0" * 400), "euclidean", "column 'x': expected a finite"),
        ('"id": "\\ud800", "v": [1]', "euclidean", "a name in column 'id' is no valid Unicode"),
        ('"id": 1, "v": "\\ud800"', "edit", "column 'v': expected valid Unicode"),
        ('"id": 1, "v": ["a", "\\ud800"]', "jaccard", "column 'v': expected valid Unicode"),
    ],
)
def test_a_cell_that_no_object_can_have_is_an_error(tmp_path, cells, metric, message):
    (tmp_path / "a.jsonl").write_text(f"{{{cells}}}", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read(tmp_path, {"file": "a.jsonl"}, metric)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("n.jsonl", b'{"id": "a", "v": "x"}\n{"id": "M\xfcller", "v": "y"}\n'),
        ("n.csv", b"id,v\nM\xfcller,y\n"),
        ("n.txt", b"x\nM\xfcller\n"),
    ],
)
def test_a_file_in_another_encoding_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    source = {"file": name} if name == "n.txt" else {"file": name, "id": "id", "columns": ["v"]}
    section = OfferSection.model_validate({"metric": "edit", "source": source})
    with pytest.raises(DataError, match=rf"{name}.*line 2.*save it as UTF-8"):
        OfferedObjects.read("north", "points", section, tmp_path, secret=b"s")


def test_points_of_several_reference_systems_are_refused(tmp_path, postgres):
    points = "unnest(array['SRID=3857;POINT(1 2)', 'SRID=32632;POINT(1 2)'])::geometry AS p"
    url = postgres.url(postgres.new_database())
    source = {"database": url, "sql": f"SELECT row_number() OVER () AS id, {points}"}
    with pytest.raises(DataError, match=r"expected one SRID in column 'p' .* got 3857, 32632"):
        read(tmp_path, source)


def test_payloads_have_the_values_of_json(tmp_path):
    notes = ['{"a": [1, {"b": NaN}]}', '"\\ud800"', "1e400", "null"]
    lines = [f'{{"id": {i}, "v": [{i}], "note": {note}}}' for i, note in enumerate(notes)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    source = {"file": "a.jsonl", "columns": ["v"]}
    section = {"metric": "euclidean", "source": {"id": "id", **source}}
    offer = OfferSection.model_validate({**section, "policy": {"payload": ["note"]}})
    found = OfferedObjects.read("north", "points", offer, tmp_path, secret=b"s")
    query, ids = encode_query(np.zeros(1)), tuple("0123")
    found.party.answer(NearestRequest("q", query, 4, None))
    rows = found.party.answer(PayloadRequest("q", query, ids)).rows
    assert [json.loads(row)["note"] for row in rows] == [{"a": [1, {"b": None}]}, "?", None, None]


CODED = (
    "CREATE TYPE colour AS ENUM ('red', 'green')",
    "CREATE DOMAIN years AS int CHECK (value >= 0)",
    "CREATE TABLE coded (id char(8), at geometry(point), code char(6), seen timestamptz, "
    "begun timestamp, weight float8, cost numeric(30, 4), hue colour, born date, age years, "
    "key uuid, items jsonb, words text[], raw bytea, n int8)",
    "INSERT INTO coded SELECT 'p' || i, ST_MakePoint(i, 0), (array['ab', 'a b', NULL])[1 + i % 3], "
    "timestamptz '2020-06-01 12:00:00.5+02' + i * interval '0.5 s', "
    "timestamp '2020-06-01 12:00' + i * interval '0.5 s', "
    "(array[1.5, 'NaN', NULL])[1 + i % 3]::float8, (array[0.1, 'NaN', 1e20, 2.5, 7])[1 + i % 5], "
    "(array['red', 'green'])[1 + i % 2]::colour, date '2000-02-28' + i, 40 + i, "
    "'00000000-0000-4000-8000-000000000000', '{\"a\": [1.5, null]}', '{a,b}', '\\x01ff', i "
    "FROM generate_series(0, 14) AS i",
)
CODED_KINDS = {
    "code": "text", "seen": "text", "begun": "text", "weight": "number", "cost": "number",
    "hue": "text", "born": "text", "age": "number", "key": "text", "n": "text",
}  # fmt: skip
CODED_COLUMNS = (*CODED_KINDS, "items", "words", "raw", "at")


def test_rows_are_the_same_whether_they_are_loaded_or_stay(tmp_path, postgres, monkeypatch):
    monkeypatch.setenv("PGTZ", "Asia/Kolkata")  # no answer depends on the settings of the session
    url = postgres.url(postgres.new_database(*CODED))
    section = {"metric": "euclidean", "filters": CODED_KINDS, "policy": {"payload": CODED_COLUMNS}}
    loaded = {"id": "id", "sql": "SELECT * FROM coded", "columns": ["at"]}
    pushed = {"kind": "postgis", "id": "id", "table": "coded", "location": "at"}
    both = []
    for source in (loaded, pushed):
        offer = OfferSection.model_validate({**section, "source": {"database": url, **source}})
        both.append(OfferedObjects.read("north", "points", offer, tmp_path, secret=b"s"))
    query = encode_query(np.zeros(2))
    answers = []
    for found in both:
        ids = found.party.answer(NearestRequest("q", query, 20, None)).ids
        payload = found.party.answer(PayloadRequest("q", query, ids)).rows
        answers.append([(name, json.loads(row)) for name, row in zip(ids, payload, strict=True)])
        found.party.answer(FinishRequest(("q",)))
    assert answers[0] == answers[1]
    assert answers[0][1][1] == {
        "code": "a b", "seen": "2020-06-01 10:00:01+00:00", "begun": "2020-06-01 12:00:00.500000",
        "weight": None, "cost": None, "hue": "green", "born": "2000-02-29", "age": 41,
        "key": "00000000-0000-4000-8000-000000000000", "n": 1, "items": {"a": [1.5, None]},
        "words": ["a", "b"], "raw": "01ff", "at": {"type": "Point", "coordinates": [1.0, 0.0]},
    }  # fmt: skip
    assert [row["cost"] for _, row in answers[0][:5]] == [0.1, None, 10**20, 2.5, 7]
    rows = dict(answers[0])
    others = {"code": ["ab", "ab    "], "seen": ["2020-06-01 10:00:00.5+00:00"], "cost": [1e20, 8]}
    for name, kind in CODED_KINDS.items():
        cells = {row[name] for row in rows.values()} | set(others.get(name, ()))
        for cell in sorted(cells, key=str):
            operand = cell if cell is None else {"text": str, "number": float}[kind](cell)
            expected = [one for one, row in rows.items() if row[name] == cell]
            for where in ({name: operand}, {name: {"in": [operand, operand]}}):
                assert [search(found, np.zeros(2), 20, where)[1] for found in both] == [
                    expected
                ] * 2
            if kind == "number" and cell is not None:
                where = {"not": {name: {">": operand}}}
                first, second = (search(found, np.zeros(2), 20, where)[1] for found in both)
                assert first == second
    for found in both:
        found.release()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"filters": {"hue": "number"}}, "'hue' is declared as 'number', but has the type enum"),
        ({"filters": {"code": "number"}}, "declare it as 'text', or cast it in the query or in a "),
        ({"filters": {"age": "boolean"}}, "declare it as 'number' or 'text', or cast it in the"),
        ({"filters": {"weight": "text"}}, 'for example "weight"::text'),
        ({"filters": {"items": "text"}}, "'items' is declared as 'text', but has the type jsonb"),
        ({"filters": {"hue": "molecule"}}, "declare it as 'text', or cast it"),
        ({"id": "weight"}, "'weight' has the names, but has the type float8 in the database; cast"),
        ({"payload": ["box"]}, "'box' has the type box3d, which cannot be read; cast it"),
    ],
)
@pytest.mark.parametrize("is_pushed", [False, True])
def test_a_column_of_an_unsuited_type_is_found_at_the_start(
    tmp_path, postgres, changes, message, is_pushed
):
    name = postgres.new_database(*CODED, "TRUNCATE coded", "ALTER TABLE coded ADD box box3d")
    given = {"filters": {}, "payload": (), "id": "id", **changes}
    source = {"database": postgres.url(name), "id": given["id"]}
    if is_pushed:
        source |= {"kind": "postgis", "table": "coded", "location": "at"}
    else:
        names = dict.fromkeys([given["id"], "at", *given["filters"], *given["payload"]])
        source |= {"sql": f"SELECT {', '.join(names)} FROM coded", "columns": ["at"]}
    section = {"metric": "euclidean", "filters": given["filters"], "source": source}
    section["policy"] = {"payload": given["payload"]}
    with pytest.raises(DataError) as info:
        OfferedObjects.read(
            "north", "points", OfferSection.model_validate(section), tmp_path, secret=b"s"
        )
    assert message in str(info.value)


def test_a_wrong_name_of_a_filter_column_is_named_before_objects_are_read(tmp_path, postgres):
    url = postgres.url(postgres.new_database("CREATE TABLE things AS SELECT 1 AS n"))
    sql = "SELECT '1' AS id, '[1, 2]' AS v, true AS vip FROM things"
    with pytest.raises(DataError, match="has no column 'vpi'; its columns are 'id', 'v', 'vip'"):
        read(tmp_path, {"database": url, "sql": sql}, filters={"vpi": "boolean"})


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        (
            "number",
            [
                "true", "date '2020-01-02'", "timestamptz '2020-01-02'", "time '10:00'",
                "interval '1 day'", "'7'", "char(3) '7'", "jsonb '7'",
            ],
        ),
        ("boolean", [f"{type_} '1'" for type_ in ("int2", "int4", "int8", "float8", "numeric")]),
        ("boolean", ["'yes'", "jsonb 'true'"]),
        ("text", ["1.5::float8", "jsonb '[1]'", "'ab'::bytea", "true"]),
    ],
)  # fmt: skip
def test_the_cast_in_an_error_is_valid(tmp_path, postgres, kind, cells):
    for cell in cells:
        url = postgres.url(postgres.new_database(f"CREATE TABLE things AS SELECT {cell} AS v"))
        source = {"database": url, "columns": ["x"]}
        sql = "SELECT '1' AS id, 1.0 AS x, v FROM things"
        with pytest.raises(DataError) as info:
            read(tmp_path, {**source, "sql": sql}, filters={"v": kind})
        cast = str(info.value).rpartition("for example ")[2]
        sql = f"SELECT '1' AS id, 1.0 AS x, {cast} AS v FROM things"

        found = read(tmp_path, {**source, "sql": sql}, filters={"v": kind})

        texts = ["1.5", "[1]", "\\x6162", "true"]
        where = {"number": {">": 0}, "boolean": True, "text": {"in": texts}}[kind]
        assert search(found, np.zeros(1), 5, {"v": where})[1] == ["1"]


def test_doctor_names_a_column_of_an_unsuited_type(tmp_path, postgres):
    url = postgres.url(postgres.new_database(*CODED))
    source = {"kind": "postgis", "database": url, "table": "coded", "id": "id", "location": "at"}
    section = {"metric": "euclidean", "filters": {"hue": "number"}, "source": source}
    provider = {"name": "north", "broker": "https://broker.example"}
    config = ProviderConfig.model_validate(
        {"format": 1, "folder": tmp_path, "provider": provider, "collections": {"places": section}}
    )
    (hop,) = _examine_sources(config)
    assert (hop.name, hop.is_ok) == ("source", False)
    assert "column 'hue' is declared as 'number', but has the type enum" in hop.text
    assert "declare it as 'text', or cast it" in hop.text


@pytest.mark.parametrize("make", MAKERS[:4])
def test_an_empty_result_is_an_empty_collection(tmp_path, request, make):
    source = make(tmp_path, request)
    found = read(tmp_path, {**source, "sql": source["sql"] + " WHERE age > 99"}, filters=FILTERS)
    assert found.offer.n_objects == 0
    assert search(found, np.zeros(3), 5) == ([], [])


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT id, v FROM nothing", "nothing"),
        ("SELECT id, speed FROM points", "speed"),
        ("SELECT v FROM points", "has no column 'id'"),
        ("SELECT id, v, v FROM points", "repeats these column names"),
        ("SELECT 'a' AS id, v FROM points", "equal names; ids must be unique"),
        ("SELECT NULL AS id, v FROM points", "column 'id' is missing"),
        ("SELECT id, NULL AS v FROM points", "data row 1, column 'v': the cell is missing"),
        ("SELECT id, 'north' AS v FROM points", "column 'v': expected numbers in brackets"),
        ("SELECT id, age, 1 AS one FROM points", "column 'age': the cell is missing"),
        ("DELETE FROM points", "points"),
        ("SELECT id, v FROM", "check the query"),
    ],
)
@pytest.mark.parametrize("make", MAKERS[:4])
def test_an_error_of_a_query_names_it(tmp_path, request, make, sql, message):
    source = {**make(tmp_path, request), "sql": sql}
    with pytest.raises((DataError, SourceError)) as info:
        read(tmp_path, source)
    assert message in str(info.value)
    assert sql in str(info.value)
    assert "opensesame" not in str(info.value)
    assert read(tmp_path, {**source, "sql": "SELECT id, v FROM points"}).offer.n_objects == 60


def test_a_role_without_permission_is_told_to_grant(tmp_path, postgres_url, password):
    source = {"database": postgres_url, "password_file": password, "sql": "TABLE secrets"}
    with pytest.raises(SourceError, match=r"permission denied for table secrets; .*GRANT SELECT"):
        read(tmp_path, source)


def test_a_query_of_a_superuser_cannot_write(tmp_path, postgres):
    name = postgres.new_database(
        "CREATE TABLE t (id int)",
        "CREATE FUNCTION add_row() RETURNS int LANGUAGE sql AS "
        "'INSERT INTO t VALUES (1) RETURNING id'",
    )
    source = {"database": postgres.url(name), "sql": "SELECT add_row() AS id, 1 AS x"}
    with pytest.raises(SourceError, match="cannot execute INSERT in a read-only transaction"):
        read(tmp_path, source)


@pytest.mark.parametrize("sql", ["VACUUM INTO '{}'", "ATTACH '{}' AS other"])
def test_a_query_of_sqlite_can_write_no_file(tmp_path, request, sql):
    source, file = make_sqlite(tmp_path, request), tmp_path / "other.sqlite"
    with pytest.raises(SourceError, match=r"authorization denied|not authorized"):
        read(tmp_path, {**source, "sql": sql.format(file)})
    assert not file.exists()


@pytest.mark.parametrize(
    "sql",
    [
        "COPY points TO '{}'",
        "ATTACH '{}' AS other",
        "EXPORT DATABASE '{}'",
        "EXPLAIN ANALYZE COPY points TO '{}'",
        "SELECT id, v FROM points; COPY points TO '{}'",
        "CALL enable_logging(storage = 'file', storage_path = '{}')",
        "SELECT * FROM enable_logging(storage = 'file', storage_path = '{}')",
        "SELECT * FROM enable_profiling(save_location = '{}')",
        "SELECT * FROM query('COPY points TO ''{}''')",
        "SET temp_directory = '{}'",
        "",
    ],
)
def test_a_query_of_duckdb_can_write_no_file(tmp_path, request, sql):
    source, file = make_duckdb(tmp_path, request), tmp_path / "other"
    expected = "expected a single SELECT|configuration has been locked|Expected a single SELECT"
    with pytest.raises((DataError, SourceError), match=expected):
        read(tmp_path, {**source, "sql": sql.format(file)})
    assert [one.name for one in tmp_path.iterdir()] == ["points.duckdb"]


def test_a_query_of_duckdb_can_read_files(tmp_path, request, monkeypatch):
    source, _ = make_duckdb(tmp_path, request), make_parquet(tmp_path, request)
    monkeypatch.chdir(tmp_path)
    columns = {"filters": FILTERS}
    file = read(tmp_path, {**source, "sql": "FROM 'points.parquet';"}, **columns)
    whole = read(tmp_path, source, **columns)
    assert search(file, VECTORS[3], 60) == search(whole, VECTORS[3], 60)


def test_a_wrong_password_is_not_shown(tmp_path, postgres_url, monkeypatch):
    (tmp_path / "wrong").write_text("verysecret", encoding="utf-8")
    source = {"database": postgres_url, "sql": "SELECT id, v FROM points"}
    with pytest.raises(SourceError, match="password authentication failed") as info:
        read(tmp_path, {**source, "password_file": "wrong"})
    assert "password_file, PGPASSFILE or PGPASSWORD" in str(info.value)
    assert "verysecret" not in f"{info.value} {info.value.__context__}"
    with pytest.raises(DataError, match="cannot read the password file"):
        read(tmp_path, {**source, "password_file": "nothing"})
    monkeypatch.setenv("PGPASSWORD", "opensesame")
    assert read(tmp_path, source).offer.n_objects == 60


def test_a_server_that_does_not_answer_is_named(tmp_path):
    source = {"database": f"postgresql:///a?host={tmp_path}", "sql": "SELECT 1 AS id"}
    with pytest.raises(SourceError, match=f"SELECT 1 AS id .*{tmp_path}.*check the address"):
        read(tmp_path, source)


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_a_missing_or_foreign_file_is_named(tmp_path, kind):
    source = {"database": f"{kind}:none.db", "sql": "SELECT * FROM points"}
    with pytest.raises(MissingDataError, match=r"no file .*none\.db"):
        read(tmp_path, source)
    (tmp_path / "none.db").write_bytes(b"no database at all" * 1000)
    with pytest.raises(SourceError, match=r"none\.db"):
        read(tmp_path, source)


SLOW = {
    make_postgres: "SELECT pg_sleep(60)::text AS id, 1 AS x",
    make_duckdb: "SELECT count(*) AS id FROM range(100000000000) a",
    make_sqlite: "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT max(i) AS id FROM n",
}


@pytest.mark.parametrize("make", SLOW)
def test_a_slow_query_is_cancelled(tmp_path, request, make):
    source = {**make(tmp_path, request), "sql": SLOW[make]}
    with pytest.raises(SourceError, match=r"took longer than timeout_s = 0\.2 seconds"):
        read(tmp_path, {**source, "timeout_s": 0.2})
    queries, errors = [], []

    def run():
        try:
            read(tmp_path, source, on_query=queries.append)
        except SourceError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():  # until it has begun
        if queries:
            queries[0].cancel()
        thread.join(0.01)
    assert "cancelled" in errors[0]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('file = "a.csv", sql = "SELECT 1"', "expected either file, or database and sql"),
        ('database = "sqlite:a"', "expected either file, or database and sql"),
        ("columns = []", "expected either file, or database and sql"),
        ('database = "sqlite:a", sql = "SELECT 1"', "expected id"),
        ('database = "mysql:a", sql = "S", id = "i"', "expected a database postgresql://"),
        ('database = "postgresql://u:hunter2@h/d", sql = "S", id = "i"', "has a password"),
        ('database = "postgresql://h/d?PassWord=hunter2", sql = "S", id = "i"', "has a password"),
        ('database = "postgresql://[hunter2/d", sql = "S", id = "i"', "has a password"),
    ],
)
def test_a_source_of_a_configuration_is_checked(tmp_path, source, message):
    path = tmp_path / "provider.toml"
    path.write_text(
        'format = 1\n[provider]\nname = "north"\nbroker = "https://b"\n[collections.points]\n'
        f'metric = "euclidean"\nsource = {{ {source} }}\n',
        encoding="utf-8",
    )
    with pytest.raises(DataError) as info:
        ProviderConfig.read(path)
    assert message in str(info.value)
    assert "hunter2" not in str(info.value)


def forget(folder, *arguments):
    return CliRunner().invoke(
        app, ["provider", "forget", *arguments, "--config", str(folder / "provider.toml")]
    )


@pytest.fixture
def forgetful(tmp_path):
    """Return a folder with the configuration and the key of a provider."""
    (tmp_path / "state").mkdir()
    Identity.new().write(tmp_path / "state/provider.pem")
    (tmp_path / "provider.toml").write_text(
        'format = 1\n[provider]\nname = "north"\nbroker = "https://b"\n'
        '[collections.points]\nmetric = "edit"\nfilters = { age = "number" }\n'
        'source = { file = "a.csv", columns = ["title"], id = "id" }\npolicy.payload = ["age"]\n'
        '[collections.unnamed]\nmetric = "edit"\nsource = { file = "a.csv", columns = ["title"] }\n'
        '[collections.pushed]\nmetric = "haversine"\nsource = { kind = "postgis" }\n'
    )
    lines = "".join(f"p{row},{'x' * (row + 1)},{row}\n" for row in range(6))
    (tmp_path / "a.csv").write_text("id,title,age\n" + lines)
    return tmp_path


def test_forgotten_objects_are_in_no_answer(forgetful):
    config = ProviderConfig.read(forgetful / "provider.toml")
    options = {"secret": Identity.read(forgetful / "state/provider.pem").private}

    def read_points():
        section = config.collections["points"]
        return OfferedObjects.read(
            "north", "points", section, forgetful, **options, forgotten=config.forgotten_file
        )

    before = read_points()
    result = forget(forgetful, "points", "p1", "p4")
    assert "2 names of points are forgotten" in result.output
    after = read_points()
    assert search(after, "", 9) == ([1.0, 3.0, 4.0, 6.0], ["p0", "p2", "p3", "p5"])
    assert search(after, "", 9, {"age": {">=": 2}})[1] == ["p2", "p3", "p5"]
    assert before.offer.n_objects == 6
    assert after.offer.n_objects == 4
    assert before.epoch != after.epoch
    assert "p1" not in config.forgotten_file.read_text()
    assert "0 names" in forget(forgetful, "points", "p1").output
    (forgetful / "state/provider.pem").unlink()
    Identity.new().write(forgetful / "state/provider.pem")  # a new key changes nothing
    assert read_points().offer.n_objects == 4
    others = config.collections["unnamed"]
    other = OfferedObjects.read(
        "north", "unnamed", others, forgetful, secret=b"", forgotten=config.forgotten_file
    )
    assert other.offer.n_objects == 6
    assert config.forgotten_file.stat().st_mode & 0o777 == 0o600
    config.forgotten_file.write_text("damaged\n")
    with pytest.raises(DataError, match="is damaged; restore it from a backup"):
        read_points()


@pytest.mark.parametrize(
    ("collection", "message"),
    [
        ("others", "expected one of points, unnamed, pushed"),
        ("unnamed", "have no names; set id"),
        ("pushed", "stay in a database: change or copy it there"),
    ],
)
def test_objects_that_cannot_be_forgotten_are_an_error(forgetful, collection, message):
    result = forget(forgetful, collection, "p1")
    assert result.exit_code == 1
    assert message in result.output
    assert not (forgetful / "state/forgotten").exists()


def test_a_snapshot_needs_a_query_with_names(tmp_path):
    query = {"database": "sqlite:points.sqlite", "sql": "SELECT 1 AS v", "id": "id"}
    sqlite3.connect(tmp_path / "points.sqlite").close()
    mixed = {**query, "sql": "SELECT 1 AS id, 'a' AS v UNION SELECT 2, 3"}
    for source, message in (
        (query, "has no column 'id'; it has v"),
        (mixed, "column 'v' has values of several types"),
        ({"file": "a.csv"}, "the source is the file a.csv: copy it"),
    ):
        with pytest.raises(DataError, match=message):
            write_snapshot(SourceSection.model_validate(source), tmp_path, tmp_path / "out.arrow")
    assert not (tmp_path / "out.arrow").exists()


def test_a_snapshot_is_written_by_a_command(forgetful):
    connection = sqlite3.connect(forgetful / "points.sqlite")
    with connection:
        connection.execute("CREATE TABLE points AS SELECT 'p' AS id, 'alpha' AS title")
    connection.close()
    config, out = forgetful / "provider.toml", forgetful / "copy.arrow"
    with config.open("a") as file:
        file.write(
            '[collections.asked]\nmetric = "edit"\n[collections.asked.source]\nid = "id"\n'
            'database = "sqlite:points.sqlite"\nsql = "SELECT id, title FROM points"\n'
        )
    command = ["provider", "snapshot", "asked", str(out), "--config", str(config)]
    result = CliRunner().invoke(app, command)
    assert "1 rows of asked are in" in result.output
    assert search(read(forgetful, {"file": "copy.arrow"}, "edit"), "alpha", 1) == ([0.0], ["p"])
    command[2] = "pushed"
    assert "stay in a database" in CliRunner().invoke(app, command).output
