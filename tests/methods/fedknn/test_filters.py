"""Filters: a filtered search is the search of the objects that meet the filter."""

import re
import time
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors import FederatedNeighbors, Privacy
from fedneighbors.datasets import Molecules
from fedneighbors.datasets._molecules import fingerprint_from_smiles
from fedneighbors.errors import DataError, PartyRefused
from fedneighbors.federation._messages import encode
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn import _filters, _sources
from fedneighbors.methods.fedknn._filters import FilterColumns, FilteredSession, filter_text
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import FilteredQuery, decode_query, encode_query
from fedneighbors.methods.fedknn._settings import ALGORITHMS
from fedneighbors.methods.fedknn.metrics import _sessions, metric_of
from fedneighbors.methods.fedknn.protocol import NearestRequest, RangeCountRequest
from tests.methods.fedknn.test_estimator import OBJECTS
from tests.naive.filters import meets

NUMBERS = st.sampled_from([-1.5, 0, 1, 2, 2**53, 1e300])
TEXTS = st.sampled_from(["", "a", "a\0", "b", "ß"])
CELLS = {
    "n": st.none() | NUMBERS,
    "t": st.none() | TEXTS,
    "b": st.none() | st.booleans(),
}
CONDITIONS = {
    "n": CELLS["n"]
    | st.dictionaries(st.sampled_from(["<", "<=", ">", ">=", "=="]), NUMBERS, max_size=2)
    | st.fixed_dictionaries({"in": st.lists(CELLS["n"], max_size=3)}),
    "t": CELLS["t"] | st.fixed_dictionaries({"in": st.lists(CELLS["t"], max_size=3)}),
    "b": CELLS["b"],
}
LEAVES = st.fixed_dictionaries({}, optional=CONDITIONS)
FILTERS = st.recursive(
    LEAVES,
    lambda parts: st.builds(
        lambda leaf, more: {**leaf, **more},
        LEAVES,
        st.fixed_dictionaries(
            {},
            optional={
                "and": st.lists(parts, max_size=2),
                "or": st.lists(parts, max_size=2),
                "not": parts,
            },
        ),
    ),
    max_leaves=5,
)
ROWS = st.lists(st.fixed_dictionaries(CELLS), max_size=8)


def as_columns(rows):
    return {name: [row[name] for row in rows] for name in CELLS}


@given(ROWS, FILTERS)
def test_matches_equal_the_naive_ones(rows, where):
    columns = FilterColumns.of(as_columns(rows), len(rows))
    # a column of missing cells has no kind, and is treated as text
    where_ok = all(any(row[name] is not None for row in rows) for name in CELLS)

    if where_ok:
        assert columns.match(where).tolist() == [meets(row, where) for row in rows]


SMILES = [
    "c1ccccc1CO", "CCO", "C", "c1ccncc1", "CC(=O)Oc1ccccc1C(=O)O", "[Na+].[Cl-]", "[13CH4]",
    "N[C@@H](C)C(=O)O", "N[C@H](C)C(=O)O", "F/C=C/F", "C1CCC2CCCCC2C1", "[2H]O[2H]", "OO", "",
]  # fmt: skip
PATTERNS = [
    "c1ccccc1", "C1=CC=CC=C1", "CO", "[#6]-[OX2H]", "[R]", "[R2]", "[!#6]", "*", "[$(C=O)]", "C.O",
    "[Na+]", "[13C]", "N[C@@H](C)C(=O)O", "F/C=C/F", "F/C=C\\F", "[H]", "[2H]", "~", "[D3]", "OCC",
    "[r6]", "[C,N]", "[#0]", "[v4]", "[h3]", "C(=O)[O;H1]", "a1aaaaa1", "[CX4;!R]",
]  # fmt: skip


@given(
    st.lists(st.none() | st.sampled_from(SMILES), max_size=8),
    st.sampled_from([one for one in PATTERNS if one != "~"]),
    st.booleans(),
)
def test_substructures_are_those_of_each_molecule_alone(smiles, pattern, is_found):
    columns = FilterColumns.of({"m": smiles}, len(smiles), kinds={"m": "molecule"})
    where = {"m": {"substructure": pattern}}
    where = where if is_found else {"not": where}

    expected = [meets({"m": one}, where) for one in smiles]
    assert columns.match(where).tolist() == expected
    rows = np.arange(len(smiles))[::2]
    assert columns.select(rows).match(where).tolist() == expected[::2]


def test_a_search_is_filtered_by_substructure():
    smiles = ["c1ccccc1CO", "CCO", "c1ccncc1", "CC(=O)Oc1ccccc1C(=O)O"]
    search = FederatedNeighbors(metric="tanimoto", algorithm="dann")
    search.fit(smiles, parties=["a", "a", "b", "b"], columns={"m": Molecules(smiles)})

    where = {"m": {"substructure": "c1ccccc1"}}
    assert search.kneighbors(["CCO"], n_neighbors=4, where=where)[1][0].tolist() == [0, 3]


@pytest.mark.parametrize("pattern", ["xx", "", "~", "C" * 1001, "c1cc"])
def test_an_unreadable_pattern_is_refused_and_not_printed(pattern, capfd):
    columns = FilterColumns.of({"m": ["C"]}, 1, kinds={"m": "molecule"})

    with pytest.raises(ValueError, match=r"expected SMARTS (as|of at most 1000)"):
        columns.match({"m": {"substructure": pattern}})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("smiles", ["no-smiles", "C1CC", "C[C", "c1cccc1", "C(C)(C)(C)(C)C"])
def test_an_unreadable_molecule_is_not_printed(smiles, capfd):
    with pytest.raises(DataError, match=re.escape(smiles)):
        fingerprint_from_smiles(smiles)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("condition", ["C", {"==": "C"}, {">": 1}, {"substructure": 1}])
def test_molecules_have_no_other_conditions(condition):
    columns = FilterColumns.of({"m": ["C"]}, 1, kinds={"m": "molecule"})

    with pytest.raises(ValueError, match=r"expected \{'substructure': SMARTS\} or None"):
        columns.match({"m": condition})


def test_an_unreadable_molecule_of_a_column_is_named():
    with pytest.raises(ValueError, match="column 'm': molecule 1: expected SMILES, got 'zz'"):
        FilterColumns.of({"m": ["C", "zz"]}, 2, kinds={"m": "molecule"})


def table(n, seed=0):
    """Return columns of n objects, with missing cells."""
    rng = np.random.default_rng(seed)
    ages = [None if rng.random() < 0.2 else int(age) for age in rng.integers(0, 90, n)]
    sites = [rng.choice(["a", "b", None]) for _ in range(n)]
    return {"age": ages, "site": sites}


WHERE = {"age": {">=": 20, "<": 80}, "or": [{"site": "a"}, {"site": None}]}


def keep(columns, where, n):
    return [i for i in range(n) if meets({k: v[i] for k, v in columns.items()}, where)]


@pytest.fixture(params=[0, 1000], ids=["own index", "all objects"])
def n_skipping(request, monkeypatch):
    """Set the number of queries of a filter that skip objects in a search of all."""
    monkeypatch.setattr(_filters, "_N_SKIPPING", request.param)
    monkeypatch.setattr(_filters, "_NARROW", 1000 if request.param else 1)


@pytest.mark.usefixtures("n_skipping")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("metric", "where"),
    [*((metric, WHERE) for metric in sorted(OBJECTS)), ("edit", {"age": {">": 100}}), ("edit", {})],
)
def test_filtered_search_equals_a_search_of_the_remaining_objects(metric, algorithm, where):
    objects, n = OBJECTS[metric], len(OBJECTS[metric])
    columns, owners = table(n), np.arange(n) % 3
    kept = keep(columns, where, n)
    search = FederatedNeighbors(metric, algorithm).fit(objects, parties=owners, columns=columns)
    # names stay as in the whole federation, since they decide ties
    few = FederatedNeighbors(metric).fit(
        [objects[i] for i in kept], parties=[owners[i] for i in kept], ids=kept
    )

    for k in (5, 100):
        distances, positions = search.kneighbors(objects[:2], k, where=where)
        expected, among = few.kneighbors(objects[:2], k)
        for query in range(2):
            assert distances[query].tolist() == expected[query].tolist()
            assert positions[query].tolist() == [kept[i] for i in among[query]]
    assert all(record.exact for record in search.query_records_)


@pytest.mark.usefixtures("n_skipping")
def test_radius_search_and_private_search_are_filtered():
    objects = OBJECTS["euclidean"]
    columns, owners = table(60), np.arange(60) % 3
    kept = keep(columns, WHERE, 60)
    search = FederatedNeighbors(algorithm="baseline").fit(objects, parties=owners, columns=columns)
    private = FederatedNeighbors(algorithm="dann*", privacy=Privacy(1, delta=1e-6), grid_s=0)
    private.fit(objects, parties=owners, columns=columns)

    expected = search.kneighbors(objects[:2], 7, where=WHERE)
    within = search.radius_neighbors(objects[:2], 1.0, where=WHERE)
    found = private.kneighbors(objects[:2], 7, where=WHERE)

    assert [p.tolist() for p in found[1]] == [p.tolist() for p in expected[1]]
    for query in range(2):
        near = [i for i in kept if np.linalg.norm(objects[i] - objects[query]) <= 1.0]
        assert sorted(within[1][query].tolist()) == near


def test_processes_and_data_frames_are_filtered():
    frame = pd.DataFrame(table(10)).convert_dtypes()
    words = OBJECTS["edit"][:10]
    alone = FederatedNeighbors("edit").fit(words, columns=table(10))
    workers = FederatedNeighbors("edit", workers="processes")
    workers.fit(words, parties=np.arange(10) % 2, columns=frame)

    found = workers.kneighbors(["bank"], 10, where=WHERE, return_distance=False)

    expected = alone.kneighbors(["bank"], 10, where=WHERE, return_distance=False)
    assert set(found[0]) == set(expected[0]) == set(keep(table(10), WHERE, 10))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"weight": 1}, "expected a column among 'age', 'site' in a filter, got 'weight'"),
        ({"Sites": "a"}, "got 'Sites'; did you mean 'site'[?]"),
        ({"age": "40"}, "expected a number for the column 'age', got '40'"),
        ({"age": True}, "expected a number for the column 'age', got True"),
        ({"age": {">=": float("nan")}}, "expected a number for the column 'age', got nan"),
        ({"age": {">=": None}}, "expected a number for the column 'age', got None"),
        ({"age": {"like": 4}}, "unknown operator 'like' for the number column 'age'"),
        ({"site": {"<": "b"}}, "unknown operator '<' for the text column 'site'"),
        ({"site": {"in": "ab"}}, "expected a list for 'in' in a filter, got 'ab'"),
        ({"or": {"age": 4}}, "expected a list for 'or' in a filter"),
        ({"not": [{"age": 4}]}, "expected a mapping of columns to conditions as filter"),
        ("age > 4", "expected a mapping of columns to conditions as filter"),
    ],
)
def test_unsuitable_filters_are_refused_before_the_search(where, words):
    search = FederatedNeighbors("edit").fit(["a", "b"], columns=table(2) | {"age": [4, None]})

    with pytest.raises(ValueError, match=words):
        search.kneighbors("a", where=where)
    assert search.query_records_ == []


def test_filters_need_columns():
    search = FederatedNeighbors("edit").fit(["a", "b"])

    with pytest.raises(ValueError, match="where needs columns: pass columns= to fit"):
        search.kneighbors("a", where={})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"or": [1, 2]}, "expected a name other than and, or, not for column 'or'"),
        ({3: [1, 2]}, "expected a name other than and, or, not for column 3"),
        ({"age": [1]}, "expected 2 cells in column 'age', one for each object, got 1"),
        ({"age": [1, "2"]}, "one of them, got number, text"),
        ({"age": [1, [2]]}, "one of them, got list, number"),
        ({"age": [1, 2**53 + 1]}, "not finite or above 2..53; use text"),
        ({"age": [1, float("inf")]}, "not finite or above 2..53; use text"),
    ],
)
def test_unsuitable_columns_are_refused(columns, words):
    with pytest.raises(ValueError, match=words):
        FederatedNeighbors("edit").fit(["a", "b"], columns=columns)


def test_a_filter_is_checked_against_the_clock():
    columns = FilterColumns.of({"age": [1, 2, 3]}, 3)

    assert columns.match({"not": {"age": 2}}, end=np.inf).tolist() == [True, False, True]
    with pytest.raises(TimeoutError, match="the deadline has passed"):
        columns.match({"or": [{"age": {"in": [1, 2]}}]}, end=-np.inf)


# -- sessions


@given(
    words=st.lists(st.text("ab", max_size=3), min_size=1, max_size=12),
    data=st.data(),
    requests=st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 1.0, 2.0, np.inf]))),
)
def test_a_skipping_session_emits_what_a_session_of_the_remaining_objects_emits(
    words, data, requests
):
    n, metric = len(words), metric_of("edit")
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1))))
    ranks = np.array(data.draw(st.permutations(range(n))))
    own = metric.index([words[row] for row in rows], ranks=ranks[rows])
    skipping = FilteredSession(
        metric.index(words, ranks=ranks).open("ab"), rows, lambda: own.open("ab")
    )
    alone = own.open("ab")

    distances = [metric.distance("ab", words[row]) for row in rows]
    assert (skipping.bounds() <= distances).all()
    for k, cutoff in requests:
        found, expected = skipping.next(k, cutoff=cutoff), alone.next(k, cutoff=cutoff)
        assert found.positions.tolist() == expected.positions.tolist()
        assert found.distances.tolist() == expected.distances.tolist()
        assert found.n_certified == len(found.positions)
        assert expected.exhausted or not found.exhausted
        assert found.exhausted or len(found.positions) == k
    assert skipping.count(1.0) == sum(distance <= 1.0 for distance in distances)


def test_a_late_session_emits_uncertain_objects_again():
    words = [f"{k:06d}" for k in range(400)]
    rows = np.arange(0, 400, 2)
    whole = metric_of("edit").index(words, ranks=np.arange(400))
    session = FilteredSession(whole.open("000123"), rows, lambda: None)

    late = session.next(50, deadline_s=0.0)
    rest = session.next(400)

    positions = [*late.positions[: late.n_certified], *rest.positions]
    assert sorted(positions) == list(range(200))
    distances = [*late.distances[: late.n_certified], *rest.distances]
    assert distances == sorted(distances)


@pytest.mark.parametrize("metric", sorted(OBJECTS))
@pytest.mark.parametrize("radius", [-1.0, 0.0, 1.0, 3.0, np.inf])
def test_counts_without_an_index_of_the_remaining_objects_are_equal(metric, radius):
    objects, n = OBJECTS[metric], len(OBJECTS[metric])
    rows, ranks = np.arange(0, n, 3), np.arange(n)
    whole = metric_of(metric).index(objects, ranks=ranks)
    own = metric_of(metric).index([objects[row] for row in rows], ranks=ranks[rows])
    session = FilteredSession(whole.open(objects[1]), rows, lambda: None)
    emitted = session.next(4).positions.tolist()

    found = session.count(radius)

    assert found == own.open(objects[1]).count(radius)
    rest = session.next(n).positions.tolist()
    assert emitted + rest == own.open(objects[1]).next(n).positions.tolist()


def test_a_late_count_without_an_index_raises_and_another_continues():
    words, rows = [f"{k:06d}" for k in range(4000)], np.arange(0, 4000, 2)
    whole = metric_of("edit").index(words, ranks=np.arange(4000))
    session = FilteredSession(whole.open("000123"), rows, lambda: None)

    with mock.patch.object(_sessions, "STEP_CELLS", 64), pytest.raises(TimeoutError):
        session.count(3.0, deadline_s=0.0)

    own = metric_of("edit").index([words[row] for row in rows], ranks=rows)
    assert session.count(3.0) == own.open("000123").count(3.0)


# -- providers


def provider(n=6):
    columns = FilterColumns.of({"age": list(range(n))}, n)
    words = [f"word {k}" for k in range(n)]
    return Provider.of("p", words, metric_of("edit"), decode=decode_query, columns=columns)


def filtered(where, query=None):
    query = encode_query("word") if query is None else query
    return encode(FilteredQuery(query, where))


@pytest.mark.parametrize(
    "where",
    ["", "{", "[]", '{"name": 1}', '{"age": "1"}', "[" * 100_000, '{"not":' * 30 + "{}" + "}" * 30],
)
def test_providers_refuse_malformed_filters(where):
    with pytest.raises(Refused, match="its filter does not suit the columns"):
        provider().answer(RangeCountRequest("q", filtered(where), None))


def test_providers_refuse_filters_within_filters():
    nested = filtered("{}", filtered("{}"))

    with pytest.raises(Refused, match="the query is not an object of this metric"):
        provider().answer(RangeCountRequest("q", nested, 1.0))


def test_providers_without_columns_refuse_filters():
    search = FederatedNeighbors("edit").fit(["a", "b"])
    search._columns = FilterColumns.of({"age": [1, 2]}, 2)

    with pytest.raises(PartyRefused, match="its filter does not suit the columns"):
        search.kneighbors("a", where={"age": 1})


@pytest.mark.parametrize("n_skipping", [0, 4])
@pytest.mark.parametrize(("index_s", "n_indexes"), [(0.1, 1), (1000.0, 0)], ids=["in time", "late"])
def test_an_index_that_would_be_late_is_not_built(monkeypatch, n_skipping, index_s, n_indexes):
    monkeypatch.setattr(_filters, "_N_SKIPPING", n_skipping)
    party, where = provider(6), filter_text({"age": {">=": 2}})
    reply = provider(6).answer(NearestRequest("q", filtered(where), 4, None))
    source = party.source
    source._index_s, party.end = index_s, time.monotonic() + 60
    built = mock.Mock(wraps=source._metric.index)

    with mock.patch.object(source._metric, "index", built):
        assert party.answer(NearestRequest("q", filtered(where), 4, None)).ids == reply.ids
        assert party.answer(RangeCountRequest("q", filtered(where), 9.0)).count == 4

    assert built.call_count == n_indexes


def test_a_filter_is_not_evaluated_after_the_deadline():
    party = provider()
    party.end = 0.0

    with pytest.raises(Refused, match="the deadline has passed"):
        party.answer(RangeCountRequest("q", filtered('{"age":4}'), None))


def test_the_indexes_of_filters_hold_no_more_objects_than_the_table(monkeypatch):
    monkeypatch.setattr(_sources, "MAX_FILTERS", 4)
    party = provider()

    def count(where):
        return party.answer(RangeCountRequest("q", filtered(filter_text(where)), None)).count

    assert [count({"age": {"<": n}}) for n in range(7)] == list(range(7))
    assert len(party.source._filtered) == 1  # all objects, as many as the table has
    assert [count({"age": n}) for n in range(6)] == [1] * 6
    assert len(party.source._filtered) == 4


def test_a_changed_column_is_another_epoch():
    search = FederatedNeighbors("edit", "dann*", privacy=Privacy(1, delta=1e-6), max_queries=1)
    ledger = search.fit(["a", "b"], parties=["x", "y"]).ledger_

    def epochs(ages):
        search.fit(["a", "b"], parties=["x", "y"], columns={"age": ages}, ledger=ledger)
        return [party.source.open("a", None).epoch for party in search.providers_]

    first, again, changed = epochs([1, 2]), epochs([1, 2]), epochs([1, 3])

    assert first == again
    assert first[0] == changed[0]
    assert first[1] != changed[1]
