"""Searches by radius, and the radii that they try."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors import FederatedNeighbors
from fedneighbors.errors import ProtocolError
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.fedknn._radius import (
    hufu,
    hufu_plus,
    middle_radius,
    next_radius,
    range_search,
)
from fedneighbors.methods.fedknn.protocol import RangeCountReply, RangeCountRequest, baseline
from tests.methods.fedknn.federations import KEY, BoundedLine, Federation, federations
from tests.naive.fedknn import nearest
from tests.seeds import cases

RADII = st.floats(0, 1.7e308)


@given(RADII, RADII, st.sampled_from([0.0, 0.1, 1.0, 1e9]))
def test_the_middle_radius_is_between_two_radii(first, second, step):
    low, high = sorted([first, second])

    middle = middle_radius(low, high, step=step)

    assert middle is None or low < middle < high


@given(RADII.filter(lambda high: high > 0))
def test_zero_is_the_first_radius(high):
    assert middle_radius(-1.0, high) == 0.0
    assert middle_radius(-1.0, 1.0, step=1.0) == 0.0


@given(RADII, RADII, st.sampled_from([0.0, 1.0]))
def test_the_number_of_halvings_is_bounded(first, second, step):
    low, high = sorted([first, second])
    n_halvings = 0

    while (middle := middle_radius(low, high, step=step)) is not None:
        low, high = (middle, high) if n_halvings % 2 else (low, middle)
        n_halvings += 1

    assert n_halvings <= 1200  # first the exponent, then the significand


@given(st.integers(0, 50), st.integers(1, 100))
def test_radii_are_successive_multiples_of_the_step(level, k):
    assert next_radius([(float(level), 0)], k, step=1.0) == level + 1


@settings(max_examples=300)
@given(st.floats(0, 1e300), st.lists(st.integers(0, 1000), min_size=1, max_size=5), st.integers(1))
def test_radii_ascend_by_half_at_most(radius, counts, k):
    counted = [(radius * (1 + i / 64), count) for i, count in enumerate(sorted(counts))]

    radius_after = next_radius(counted, k)

    last = counted[-1][0]
    assert radius_after > last
    assert radius_after <= max(1.5 * last, 1.0) * (1 + 1e-12)


@pytest.mark.parametrize("step", [0.0, 1.0])
def test_ascending_radii_reach_infinity(step):
    counted = [(0.0, 0)]

    while counted[-1][0] < math.inf:
        counted.append((next_radius(counted, 128, step=step), 0))

    assert len(counted) < 64 + 1024 + 10


@pytest.mark.parametrize("algorithm", [hufu, hufu_plus])
@pytest.mark.parametrize("unit", [1e-200, 1e-9, 0.1, 1.0, 1e9, 1e300])
def test_distances_of_any_scale_are_found_in_few_rounds(algorithm, unit):
    rng = np.random.default_rng(1)
    tables = {f"p{i}": (unit * rng.random(40)).tolist() for i in range(3)}
    federation = Federation(tables, 0.0, 10, BoundedLine(0.5, 1))

    outcome = federation.run(algorithm)

    assert outcome.result.merged.ids == federation.search(baseline).merged.ids
    assert len(outcome.rounds) <= 135


@pytest.mark.parametrize("algorithm", [hufu, hufu_plus])
@pytest.mark.parametrize(
    ("tables", "k"),
    [
        ({"p0": [], "p1": []}, 3),
        ({"p0": [4.0] * 9, "p1": [4.0] * 7}, 5),
        ({"p0": [0.0] * 9, "p1": [0.0] * 7}, 5),
        ({"p0": [1.0, 2.0], "p1": [3.0]}, 3),
        ({"p0": [1.0, 2.0], "p1": [3.0]}, 50),
        ({"p0": [5.0]}, 1),
    ],
    ids=["empty", "all alike", "all at the query", "k is all", "k beyond all", "one"],
)
def test_corner_cases_need_few_rounds(algorithm, tables, k):
    federation = Federation(tables, 0.0, k, BoundedLine(0.5, 1))

    outcome = federation.run(algorithm, step=1.0)

    answer = outcome.result
    assert answer.exact
    assert answer.merged.ids == federation.search(baseline).merged.ids
    assert len(outcome.rounds) <= 10


def radii_of(algorithm, federation, **options):
    """Return the radii of the counts that a search requests, in order."""
    requests = []

    def recording(query, k, **arguments):
        coordinator, replies = algorithm(query, k, **arguments), None
        while True:
            try:
                exchange = coordinator.send(replies)
            except StopIteration as stop:
                return stop.value
            requests.append(exchange.requests)
            replies = yield exchange

    federation.search(recording, **options)
    return [r.radius for r in requests if isinstance(r, RangeCountRequest) and r.radius is not None]


@pytest.mark.parametrize("looseness", [0.0, 0.3, 0.9])
def test_ascending_radii_end_at_the_kth_distance(looseness):
    rng = np.random.default_rng(2)
    tables = {f"p{i}": rng.integers(0, 1000, 300).astype(float).tolist() for i in range(3)}
    federation = Federation(tables, 0.0, 40, BoundedLine(looseness, 1))
    kth = federation.search(baseline).merged.distances[-1]

    ascending = radii_of(hufu_plus, federation, step=1.0)
    halving = radii_of(hufu, federation, step=1.0)

    assert ascending == list(np.arange(ascending[0], kth + 1))
    assert max(halving) > kth


def test_a_search_begins_with_the_given_radius():
    federation = Federation({"p0": [100.0 * n for n in range(40)]}, 0.0, 5, BoundedLine(0.5, 1))

    radii = [radii_of(hufu, federation, first_radius=first)[:2] for first in (150.0, 600.0, 0.0)]

    assert radii[0] == [150.0, 300.0]
    assert radii[1][0] == 600.0
    assert radii[1][1] < 600.0
    assert radii[2] == [1.0, 2.0]


def test_ascending_radii_exceed_the_kth_distance_slightly():
    rng = np.random.default_rng(3)
    points = np.sort(rng.random(3000) ** (1 / 6))  # as many within a radius as in 6 dimensions
    tables = {f"p{i}": points[i::3].tolist() for i in range(3)}
    federation = Federation(tables, 0.0, 100, BoundedLine(0.3, 1))

    ascending = radii_of(hufu_plus, federation)

    n_within = int((points <= max(ascending)).sum())
    assert 100 <= n_within <= 300
    assert len(ascending) <= 10


@settings(max_examples=cases(300), deadline=None)
@given(federations(), st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e5, 1e7]))
def test_range_search_returns_all_objects_in_order(federation, radius):
    coordinator = range_search(repr(federation.query).encode(), radius, name="q")

    answer = run(coordinator, federation.providers()).result

    all_objects = nearest(federation.tables, federation.query, 10**6, key=KEY)
    merged = answer.merged
    neighbors = list(zip(merged.distances.tolist(), merged.owners, merged.ids, strict=True))
    assert neighbors == [item for item in all_objects if item[0] <= radius]
    assert answer.exact


def test_a_provider_that_returns_fewer_than_counted_is_named():
    class Overcounting:
        def __init__(self, inner):
            self.inner, self.name, self.accepts = inner, inner.name, inner.accepts

        def answer(self, request):
            reply = self.inner.answer(request)
            return RangeCountReply(reply.count + 1) if isinstance(reply, RangeCountReply) else reply

    (honest,) = Federation({"p0": [1.0, 2.0]}, 0.0, 1, BoundedLine(0.0, 1)).providers()

    with pytest.raises(ProtocolError, match="'p0'"):
        run(range_search(b"0.0", 5.0, name="q"), [Overcounting(honest)])


def test_radius_neighbors_are_those_of_a_scan():
    words = ["bank", "blank", "tank", "thank", "ink"]
    search = FederatedNeighbors("edit").fit(words, parties=[0, 1, 0, 1, 0])

    distances, neighbors = search.radius_neighbors(["bank", "zzz"], 1)

    assert [sorted(words[position] for position in positions) for positions in neighbors] == [
        ["bank", "blank", "tank"],
        [],
    ]
    assert distances[0].tolist() == [0.0, 1.0, 1.0]
    assert search.query_records_[0].algorithm == "radius"


@given(st.floats(-1.7e308, 1.7e308), st.floats(-1.7e308, 1.7e308))
def test_the_middle_of_negative_radii_is_between_them(first, second):
    low, high = sorted([first, second])

    middle = middle_radius(low, high)
    unlimited = middle_radius(-math.inf, high)

    assert middle is None or low < middle < high
    assert unlimited is None or -math.inf < unlimited < high
    assert (middle_radius(-high, -low) is None) == (middle is None)


@settings(max_examples=300)
@given(st.floats(-1e300, -1e-300), st.lists(st.integers(0, 1000), min_size=1, max_size=5))
def test_negative_radii_ascend_past_zero(radius, counts):
    counted = [(radius * (1 - i / 64), count) for i, count in enumerate(sorted(counts))]

    while counted[-1][0] < 0:
        counted.append((next_radius(counted, 1 << 20), counted[-1][1]))

    assert [limit for limit, _ in counted] == sorted({limit for limit, _ in counted})
    assert len(counted) < 40


def test_an_excessive_negative_radius_ends_the_search():
    assert next_radius([(-1.7e308, 0)], 3) == math.inf


@pytest.mark.parametrize("algorithm", ["hufu", "hufu+"])
@pytest.mark.parametrize("unit", [1e-200, 1e-9, 1.0, 1e9, 1e100])
@pytest.mark.parametrize("k", [3, 70, 200])
def test_negative_distances_of_any_scale_are_found_in_few_rounds(algorithm, unit, k):
    x = unit * np.random.default_rng(3).integers(-5, 6, (120, 4))
    search, expected = (
        FederatedNeighbors("inner_product", name).fit(x, parties=np.arange(120) % 3)
        for name in (algorithm, "baseline")
    )

    found = search.kneighbors(x[:1].tolist(), k)

    assert [near.tolist() for near in found[1]] == [
        near.tolist() for near in expected.kneighbors(x[:1].tolist(), k)[1]
    ]
    assert search.query_records_[0].n_rounds <= 135


def test_a_radius_of_inner_products_may_be_negative():
    x = np.array([[1.0, 0.0], [2.0, 0.0], [-1.0, 5.0], [3.0, 1.0]])
    search = FederatedNeighbors("inner_product").fit(x, parties="abab")

    distances, positions = search.radius_neighbors([[1.0, 0.0]], -2.0)

    assert distances[0].tolist() == [-3.0, -2.0]
    assert positions[0].tolist() == [3, 1]
    with pytest.raises(ValueError, match="expected a finite radius"):
        search.radius_neighbors([[1.0, 0.0]], -math.inf)


@pytest.mark.parametrize("radius", [-1.0, math.nan, math.inf])
def test_invalid_radii_are_refused(radius):
    search = FederatedNeighbors().fit(np.zeros((1, 2)))

    with pytest.raises(ValueError, match="expected a radius of 0 or more"):
        search.radius_neighbors([[0.0, 0.0]], radius)
