import math
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.methods.fedknn.metrics.plain import PlainMetric
from fedneighbors.methods.fedknn.metrics.strings import EditMetric
from fedneighbors.methods.fedknn.metrics.strings_session import StringSession
from fedneighbors.methods.fedknn.metrics.strings_table import lay_out
from fedneighbors.methods.fedknn.sessions import Metric
from tests.naive.editslices import distance

LETTERS = st.sampled_from(["ab", "abcdefgh", "aé\U0001f600\ud800"])
CUTOFFS = st.one_of(st.just(math.inf), st.integers(-1, 12), st.floats(0, 12))
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("next"), st.integers(0, 9), CUTOFFS),
        st.tuples(st.just("count"), st.integers(-1, 12)),
        st.tuples(st.just("bounds")),
    ),
    max_size=6,
)


@st.composite
def tables(draw):
    letters = draw(LETTERS)
    string = st.text(alphabet=letters, max_size=12)
    strings = draw(st.lists(string, max_size=25))
    query = draw(st.one_of(string, st.text(max_size=5), *map(st.just, strings[:1])))
    ranks = np.random.default_rng(draw(st.integers(0, 99))).permutation(len(strings))
    return strings, ranks, query


def regime(strings, ranks, query, longest_short, least_group):
    """Return a session that takes strings for long ones which are not."""
    table = lay_out(strings, longest_short=longest_short, least_group=least_group)
    return StringSession(table, ranks[table.order], query)


def plain_session(strings, ranks, query):
    return PlainMetric(distance).index(strings, ranks=ranks).open(query)


@settings(max_examples=250, deadline=None)
@given(tables(), CALLS, st.sampled_from([-1, 3, 6, 256]), st.sampled_from([1, 3, 64]))
def test_any_sequence_of_calls_is_answered_as_by_computing_every_distance(
    table, calls, longest_short, least_group
):
    session = regime(*table, longest_short, least_group)
    plain = plain_session(*table)
    exact = np.array([distance(table[2], string) for string in table[0]])

    for name, *arguments in calls:
        if name == "bounds":
            assert (session.bounds() <= exact).all()
        elif name == "count":
            assert session.count(*arguments) == plain.count(*arguments)
        else:
            k, cutoff = arguments
            found, expected = session.next(k, cutoff=cutoff), plain.next(k, cutoff=cutoff)
            assert found.positions.tolist() == expected.positions.tolist()
            assert found.distances.tolist() == expected.distances.tolist()
            assert found.n_certified == expected.n_certified
            assert not found.exhausted or expected.exhausted


@settings(max_examples=60, deadline=None)
@given(tables(), st.sampled_from([-1, 6, 256]))
def test_a_deadline_that_passed_loses_nothing(table, longest_short):
    session = regime(*table, longest_short, 2)
    expected = plain_session(*table).next(len(table[0]))

    hurried = [session.next(3, deadline_s=-1) for _ in range(2)]
    rest = session.next(len(table[0]))

    certified = [found.positions[: found.n_certified].tolist() for found in hurried]
    assert sum(certified, []) + rest.positions.tolist() == expected.positions.tolist()
    assert rest.exhausted


@pytest.fixture(scope="module")
def long_strings():
    """Thirty families of strings of 300 to 600 letters; members are a few edits apart."""
    rng = np.random.default_rng(11)
    strings = []
    for _ in range(30):
        base = rng.integers(0, 4, rng.integers(300, 600))
        for n_edits in rng.integers(0, 12, 5):
            member = base.copy()
            member[rng.integers(0, len(member), n_edits)] = rng.integers(0, 4, n_edits)
            strings.append("".join("ACGT"[i] for i in np.delete(member, n_edits)))
    return strings


def test_near_long_strings_are_found_without_comparing_the_far_ones(long_strings):
    ranks = np.arange(len(long_strings))
    session = EditMetric().index(long_strings, ranks=ranks).open(long_strings[7])

    found = session.next(5)

    family = {i: distance(long_strings[7], long_strings[i]) for i in range(5, 10)}
    assert found.positions.tolist() == sorted(family, key=lambda i: (family[i], i))
    assert found.distances.tolist() == sorted(family.values())
    assert session.n_verified < len(long_strings) / 2


def test_every_bound_of_long_strings_is_at_most_the_distance(long_strings):
    session = EditMetric().index(long_strings, ranks=np.arange(150)).open(long_strings[0])

    before = session.bounds()
    session.next(40)
    after = session.bounds()

    sample = range(0, 150, 10)
    exact = [distance(long_strings[0], long_strings[i]) for i in sample]
    assert (before[sample] <= exact).all()
    assert (after[sample] <= exact).all()
    assert (before <= after).all()


def test_far_long_strings_are_compared_in_groups_with_the_same_result(long_strings):
    query = "ACGT" * 100
    grouped = regime(long_strings, np.arange(150), query, 256, 1)
    single = regime(long_strings, np.arange(150), query, 256, 10**6)

    first, second = grouped.next(100), single.next(100)

    assert first.positions.tolist() == second.positions.tolist()
    assert first.distances.tolist() == second.distances.tolist()
    assert grouped.n_verified < single.n_verified


def test_a_second_call_redoes_no_comparison_of_short_strings():
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


def test_strings_of_equal_distance_come_in_the_order_of_their_ranks():
    strings = ["ab", "ac", "ad", "ae"]
    session = EditMetric().index(strings, ranks=np.array([3, 1, 0, 2])).open("a")

    found = [session.next(1).positions.tolist() for _ in range(4)]

    assert found == [[2], [1], [3], [0]]


def test_empty_table_has_no_neighbors():
    session = EditMetric().index([], ranks=np.empty(0, np.int64)).open("a")

    found = session.next(3)

    assert (len(found.positions), found.exhausted, session.count(5)) == (0, True, 0)
    assert session.bounds().shape == (0,)


def test_empty_string_is_as_far_as_the_other_is_long():
    session = EditMetric().index(["", "abc", "x" * 300], ranks=np.arange(3)).open("")

    found = session.next(3)

    assert found.positions.tolist() == [0, 1, 2]
    assert found.distances.tolist() == [0.0, 3.0, 300.0]


def test_strings_of_100000_letters_are_compared():
    base = "ACGTTGCAAC" * 10_000
    strings = [base[:50_000] + "T" + base[50_000:], base[5:], "C" * 90_000, "short"]
    session = EditMetric().index(strings, ranks=np.arange(4)).open(base)

    found = session.next(2)

    assert found.positions.tolist() == [0, 1]
    assert found.distances.tolist() == [1.0, 5.0]


def test_a_long_query_finds_short_strings():
    strings = ["ab" * n for n in range(1, 9)]

    found = EditMetric().index(strings, ranks=np.arange(8)).open("ab" * 500).next(2)

    assert found.positions.tolist() == [7, 6]
    assert found.distances.tolist() == [984.0, 986.0]


def test_composed_and_decomposed_letters_differ():
    composed, decomposed = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))

    assert EditMetric().distance(composed, decomposed) == 2


def test_lone_surrogates_are_letters():
    assert EditMetric().distance("\ud800a", "\udfffa") == 1
    assert EditMetric().distance("\ud83d\ude00", "\U0001f600") == 2


@pytest.mark.parametrize("wrong", [None, 3, b"ab", ["a"]])
def test_object_that_is_no_string_is_named_by_its_position(wrong):
    with pytest.raises(TypeError, match="at position 2"):
        EditMetric().index(["a", "b", wrong], ranks=np.arange(3))
    with pytest.raises(TypeError, match="as the query"):
        EditMetric().index(["a"], ranks=np.arange(1)).open(wrong)


@pytest.mark.parametrize("arguments", [{"k": -1}, {"k": 1, "cutoff": math.nan}])
def test_senseless_request_is_refused(arguments):
    session = EditMetric().index(["a"], ranks=np.arange(1)).open("a")

    with pytest.raises(ValueError, match="expected k of 0 or more"):
        session.next(**arguments)


def test_edit_is_a_metric_of_its_name():
    metric = EditMetric()

    assert isinstance(metric, Metric)
    assert (metric.name, metric.distance("kitten", "sitting")) == ("edit", 3.0)
