"""Filters of sources in PostgreSQL: the same rows as in memory, found with ordinary indexes."""

from decimal import Decimal

import numpy as np
import pytest

from fedneighbors.methods.fedknn._filters import FilterColumns
from fedneighbors.sources import SourceSettings
from fedneighbors.sources._filter_sql import Values
from fedneighbors.sources._postgis import PostGISSource

TYPES = {
    "small": "smallint",
    "age": "integer",
    "big": "bigint",
    "height": "real",
    "weight": "double precision",
    "price": "numeric",
    "site": "text",
    "code": "varchar(20)",
    "alive": "boolean",
}
KINDS = dict.fromkeys(list(TYPES)[:6], "number")
KINDS |= {"site": "text", "code": "text", "alive": "boolean"}
N_LARGE = 20_000


def make_source(postgres, rows):
    """Write rows and an index of each column; return the source and its columns in memory."""
    columns = ", ".join(f"{name} {type_}" for name, type_ in TYPES.items())
    name = postgres.new_database(f"CREATE TABLE items (id int, g geography(Point), {columns})")
    with postgres.connect(name) as connection:
        with connection.cursor().copy("COPY items FROM STDIN") as copy:
            for i, row in enumerate(rows):
                copy.write_row((i, "POINT(1 2)", *row))
        for column in TYPES:
            connection.execute(f"CREATE INDEX {column}_index ON items ({column})")
        connection.execute("ANALYZE items")
    options = {"database": postgres.url(name), "table": "items", "id": "id", "location": "g"}
    source = PostGISSource(SourceSettings("haversine", options, KINDS))
    cells = {
        name: [
            cell if cell is None or KINDS[name] != "number" else float(np.float32(cell))
            if TYPES[name] == "real" else float(cell)
            for cell in column
        ]
        for name, column in zip(TYPES, zip(*rows, strict=True), strict=True)
    }  # fmt: skip
    return source, FilterColumns.of(cells, len(rows), kinds=KINDS)


@pytest.fixture(scope="module")
def large(postgres):
    rows = [
        (
            i % 997, i, i * 10**9, i / 4, i / 8, Decimal(i) / 100, f"site {i}",
            f"code {i}", i == 77,
        )
        for i in range(N_LARGE)
    ]  # fmt: skip
    rows[-20:] = [(None,) * len(TYPES) for _ in range(20)]
    rows[-40:-20] = [
        (None, None, None, float("nan"), float("nan"), Decimal("NaN"), None, None, None)
    ] * 20
    source, table = make_source(postgres, rows)
    yield source, table
    source.close()


@pytest.mark.parametrize(
    ("where", "index"),
    [
        ({"age": 7}, "age"),
        ({"age": {">=": 19_900}}, "age"),
        ({"age": {">": 10.5, "<=": 12.5}}, "age"),
        ({"age": {"in": [1, 2.0, 30, 0.5]}}, "age"),
        ({"age": None}, "age"),
        ({"age": {"in": [5, None]}}, "age"),
        ({"small": 3}, "small"),
        ({"big": {"<": 30 * 10**9}}, "big"),
        ({"height": {"<=": 5.25}}, "height"),
        ({"height": {"in": [1, 2.5]}}, "height"),
        ({"weight": {"<": 2}}, "weight"),
        ({"weight": {">=": 2480, "<": 2490}}, "weight"),
        ({"weight": None}, "weight"),
        ({"price": 12.25}, "price"),
        ({"price": {">=": 199.5}}, "price"),
        ({"site": "site 7"}, "site"),
        ({"code": {"in": ["code 1", "code 2"]}}, "code"),
        ({"alive": True}, "alive"),
        ({"or": [{"age": 3}, {"age": {">": 19_950}}, {"site": "site 9"}]}, "site"),
        ({"and": [{"age": {">": 19_000}}, {"age": {"<": 19_010}}]}, "age"),
        ({"not": {"age": {"<": 19_950}}}, "age"),
        ({"not": {"weight": {">=": 2}}}, "weight"),
        ({"not": {"or": [{"weight": {">=": 3}}, {"weight": None}]}}, "weight"),
        ({"not": {"and": [{"not": {"age": 5}}, {"not": {"site": "site 7"}}]}}, "site"),
    ],
)
def test_an_index_of_the_column_is_used(large, where, index):
    source, table = large
    assert 0 < source.size(where) == int(table.match(where).sum()) < 100
    values = Values()
    statement = source.select(source.column, where, values)
    with source.snapshot() as snapshot:
        plan = [row for (row,) in snapshot.run("EXPLAIN " + statement.as_string(), values)]
    assert any(f"{index}_index" in line for line in plan), plan
    assert not any("Seq Scan" in line for line in plan), plan


NEAR = [
    "0.1", "0.10000000000000000001", "0.1000000000000000055511151231257827",
    "0.1000000000000000124900090270330610871315002441406249",
    "0.1000000000000000124900090270330610871315002441406251", "0.09999999999999999", "2",
    "9007199254740993", "1e-320", "-1.5",
]  # fmt: skip
OPERANDS = [0.1, np.nextafter(0.1, 1).item(), 2, 2.5, 1.9, -1.5, 0, 1e300, -1e300, 2**53, -0.0]


def test_filters_of_columns_of_all_types_are_as_in_memory(postgres):
    rng = np.random.default_rng(8)
    choices = {
        "small": [1, 2, 3, -2], "age": [0, 2, 3, -2], "big": [2, 2**53, -(2**53)],
        "height": [0.1, 2.5, float("nan"), -1.5], "weight": [0.1, 2, float("nan"), -0.0],
        "price": [*map(Decimal, NEAR), Decimal("NaN")],
        "site": ["a", "%", "b "], "code": ["a", "b "], "alive": [True, False],
    }  # fmt: skip
    rows = [
        tuple(None if rng.random() < 0.1 else cells[rng.integers(len(cells))] for cells in
              choices.values())
        for _ in range(400)
    ]  # fmt: skip
    source, table = make_source(postgres, rows)

    def operand(name):
        if rng.random() < 0.15:
            return None
        cells = OPERANDS if KINDS[name] == "number" else choices[name]
        return cells[rng.integers(len(cells))]

    def make_filter(depth):
        kind = rng.integers(0, 7 if depth else 4)
        if kind == 4:
            return {"not": make_filter(depth - 1)}
        if kind > 4:
            parts = [make_filter(depth - 1) for _ in range(rng.integers(0, 4))]
            return {("and", "or")[kind - 5]: parts}
        name = list(TYPES)[rng.integers(len(TYPES))]
        if kind == 0:
            return {name: operand(name)}
        if kind == 1 or KINDS[name] != "number":
            return {name: {"in": [operand(name) for _ in range(rng.integers(0, 4))]}}
        symbols = rng.choice([">=", ">", "<=", "<"], rng.integers(0, 3), replace=False).tolist()
        return {name: {symbol: OPERANDS[rng.integers(len(OPERANDS))] for symbol in symbols}}

    try:
        for _ in range(600):
            where = make_filter(3)
            assert source.size(where) == int(table.match(where).sum()), where
    finally:
        source.close()
