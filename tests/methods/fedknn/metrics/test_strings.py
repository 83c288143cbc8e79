import math
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.methods.fedknn.metrics._function import FunctionMetric
from fedneighbors.methods.fedknn.metrics._interfaces import Metric
from fedneighbors.methods.fedknn.metrics._strings import EditMetric, StringIndex, build_table
from tests.methods.fedknn.metrics.brute_force import searches
from tests.naive.edit.slices import edit_distance
from tests.seeds import cases

LETTERS = st.sampled_from(["ab", "abcdefgh", "aé\U0001f600\ud800"])
STRINGS = LETTERS.flatmap(lambda letters: st.text(alphabet=letters, max_size=12))


class SizedMetric:
    """The edit metric with given size limits of short strings and of groups."""

    def __init__(self, max_short, min_group):
        self.distance = edit_distance
        self._sizes = {"max_short": max_short, "min_group": min_group}

    def index(self, objects, *, ranks):
        table = build_table(objects, **self._sizes)
        return StringIndex(table, ranks[table.order])


@settings(max_examples=cases(300), deadline=None)
@given(
    searches(objects=STRINGS, max_size=25), st.sampled_from([-1, 3, 6]), st.sampled_from([1, 3, 64])
)
def test_search_equals_brute_force_for_any_grouping(search, max_short, min_group):
    search.assert_equals_brute_force(SizedMetric(max_short, min_group))


@settings(max_examples=100, deadline=None)
@given(searches(objects=STRINGS, queries=st.text(max_size=6)))
def test_search_equals_brute_force(search):
    search.assert_equals_brute_force(EditMetric())


@settings(max_examples=60, deadline=None)
@given(st.lists(STRINGS, min_size=1), st.sampled_from([-1, 6, 256]))
def test_a_deadline_loses_no_string(strings, max_short):
    ranks = np.arange(len(strings))
    session = SizedMetric(max_short, 2).index(strings, ranks=ranks).open(strings[0])
    expected = FunctionMetric(edit_distance).index(strings, ranks=ranks).open(strings[0])

    timed_out = [session.next(3, deadline_s=-1) for _ in range(2)]
    rest = session.next(len(strings))

    certified = [batch.positions[: batch.n_certified].tolist() for batch in timed_out]
    positions = [*certified[0], *certified[1], *rest.positions.tolist()]
    assert positions == expected.next(len(strings)).positions.tolist()
    assert rest.exhausted


@pytest.fixture(scope="module")
def long_strings():
    """Return 30 families of strings of 300 to 600 letters; members differ by a few edits."""
    rng = np.random.default_rng(11)
    strings = []
    for _ in range(30):
        base = rng.integers(0, 4, rng.integers(300, 600))
        for n_edits in rng.integers(0, 12, 5):
            member = base.copy()
            member[rng.integers(0, len(member), n_edits)] = rng.integers(0, 4, n_edits)
            strings.append("".join("ACGT"[i] for i in np.delete(member, n_edits)))
    return strings


def test_a_search_of_long_strings_verifies_few_of_them(long_strings):
    ranks = np.arange(len(long_strings))
    session = EditMetric().index(long_strings, ranks=ranks).open(long_strings[7])

    batch = session.next(5)

    family = {i: edit_distance(long_strings[7], long_strings[i]) for i in range(5, 10)}
    assert batch.positions.tolist() == sorted(family, key=lambda i: (family[i], i))
    assert batch.distances.tolist() == sorted(family.values())
    assert session.n_verified < len(long_strings) / 2


def test_every_bound_of_long_strings_is_at_most_the_distance(long_strings):
    session = EditMetric().index(long_strings, ranks=np.arange(150)).open(long_strings[0])

    before = session.bounds()
    session.next(40)
    after = session.bounds()

    sample = range(0, 150, 10)
    exact = [edit_distance(long_strings[0], long_strings[i]) for i in sample]
    assert (before[sample] <= exact).all()
    assert (after[sample] <= exact).all()
    assert (before <= after).all()


def test_groups_of_long_strings_do_not_change_the_result(long_strings):
    query = "ACGT" * 100
    grouped, single = (
        SizedMetric(256, min_group).index(long_strings, ranks=np.arange(150)).open(query)
        for min_group in (1, 10**6)
    )

    first, second = grouped.next(100), single.next(100)

    assert first.positions.tolist() == second.positions.tolist()
    assert first.distances.tolist() == second.distances.tolist()


def test_short_strings_are_compared_once():
    strings = ["a" * n for n in range(60)]
    session = EditMetric().index(strings, ranks=np.arange(60)).open("a" * 30)

    session.next(60)
    n_verified = session.n_verified
    again = session.next(5)

    assert n_verified == session.n_verified == 60
    assert (len(again.positions), again.exhausted) == (0, True)


def test_bounds_of_short_strings_are_their_distances():
    strings = ["kitten", "", "sitting", "mitten"]

    bounds = EditMetric().index(strings, ranks=np.arange(4)).open("sitten").bounds()

    assert bounds.tolist() == [1.0, 6.0, 2.0, 1.0]


def test_strings_of_equal_distance_come_in_rank_order():
    strings = ["ab", "ac", "ad", "ae"]
    session = EditMetric().index(strings, ranks=np.array([3, 1, 0, 2])).open("a")

    positions = [session.next(1).positions.tolist() for _ in range(4)]

    assert positions == [[2], [1], [3], [0]]


def test_an_empty_table_has_no_neighbors():
    session = EditMetric().index([], ranks=np.empty(0, np.int64)).open("a")

    batch = session.next(3)

    assert (len(batch.positions), batch.exhausted, session.count(5)) == (0, True, 0)
    assert session.bounds().shape == (0,)


def test_the_distance_from_the_empty_string_is_the_length():
    session = EditMetric().index(["", "abc", "x" * 300], ranks=np.arange(3)).open("")

    batch = session.next(3)

    assert batch.positions.tolist() == [0, 1, 2]
    assert batch.distances.tolist() == [0.0, 3.0, 300.0]


def test_strings_of_100000_letters_are_compared():
    base = "ACGTTGCAAC" * 10_000
    strings = [base[:50_000] + "T" + base[50_000:], base[5:], "C" * 90_000, "short"]
    session = EditMetric().index(strings, ranks=np.arange(4)).open(base)

    batch = session.next(2)

    assert batch.positions.tolist() == [0, 1]
    assert batch.distances.tolist() == [1.0, 5.0]


def test_a_long_query_finds_short_strings():
    strings = ["ab" * n for n in range(1, 9)]

    batch = EditMetric().index(strings, ranks=np.arange(8)).open("ab" * 500).next(2)

    assert batch.positions.tolist() == [7, 6]
    assert batch.distances.tolist() == [984.0, 986.0]


def test_composed_and_decomposed_letters_differ():
    composed, decomposed = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))

    assert EditMetric().distance(composed, decomposed) == 2


def test_lone_surrogates_are_letters():
    assert EditMetric().distance("\ud800a", "\udfffa") == 1
    assert EditMetric().distance("\ud83d\ude00", "\U0001f600") == 2


@pytest.mark.parametrize("invalid", [None, 3, b"ab", ["a"]])
def test_an_error_of_an_invalid_string_gives_its_position(invalid):
    with pytest.raises(TypeError, match="at position 2"):
        EditMetric().index(["a", "b", invalid], ranks=np.arange(3))
    with pytest.raises(TypeError, match="as the query"):
        EditMetric().index(["a"], ranks=np.arange(1)).open(invalid)


@pytest.mark.parametrize("arguments", [{"k": -1}, {"k": 1, "cutoff": math.nan}])
def test_an_invalid_request_is_refused(arguments):
    session = EditMetric().index(["a"], ranks=np.arange(1)).open("a")

    with pytest.raises(ValueError, match="expected k >= 0"):
        session.next(**arguments)


def test_edit_is_a_metric():
    metric = EditMetric()

    assert isinstance(metric, Metric)
    assert (metric.name, metric.distance("kitten", "sitting")) == ("edit", 3.0)
