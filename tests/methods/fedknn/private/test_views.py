"""Exact distributions of a provider's view under DANN*, compared with the privacy cost."""

import itertools
import random
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.methods.fedknn._names import Names
from fedneighbors.methods.fedknn.private._noise import CountNoise, PaperNoise, min_shift
from fedneighbors.methods.fedknn.private._oblivious import ReturnedObjects, count_bounds
from fedneighbors.methods.fedknn.private._padding import pad_nearest
from fedneighbors.methods.fedknn.private.protocol import first_request_size, second_request_size
from fedneighbors.methods.fedknn.protocol import NearestReply
from tests.naive import dannstar as naive
from tests.seeds import cases

EPSILONS = [Fraction(1, 2), Fraction(1), Fraction(4)]
ROUNDING = 1e-9
DELTA = Fraction(1, 100)


def make_noise(epsilon, promise, *, m=2, k=3):
    delta = DELTA if promise == "exact" else 0
    return CountNoise(epsilon, delta, n_providers=m, k=k, promise=promise)


def remove_shifts(noise):
    """Return the same noise without shifts, so that views of small tables differ."""
    return SimpleNamespace(
        promise=noise.promise,
        first_scale=noise.first_scale,
        second_scale=noise.second_scale,
        first_shift=0,
        second_shift=noise.second_shift if noise.promise == "exact" else 0,
    )


def neighboring_tables():
    """Yield all pairs of neighboring tables of two providers with two objects each.

    Distances and bounds are four of the numbers 0 to 4, in every order; the last object of p1 is
    replaced by one with the fifth. The viewer is p0.
    """
    for distances in itertools.permutations(range(5)):
        if distances[0] > distances[1]:
            continue  # the order of p0's two objects does not matter
        for bounds in itertools.permutations(range(5)):
            yield [
                tuple({"p0": row[:2], "p1": (row[2], row[last])} for row in (bounds, distances))
                for last in (3, 4)
            ]


@pytest.mark.parametrize("promise", ["exact", "certified"])
def test_views_of_all_small_tables_stay_within_the_cost(promise):
    noise = remove_shifts(make_noise(1, promise))
    worst = 0.0
    for pair in neighboring_tables():
        views = [naive.view(*table, "p0", 3, noise) for table in pair]
        if promise == "exact":
            worst = max(worst, naive.excess_probability(*views, 1.0) / float(DELTA))
        else:
            worst = max(worst, naive.privacy_loss(*views))

    assert 0.3 < worst <= 1 + ROUNDING  # near 0, the views would not differ at all


def random_pair(rng, m, k, *, relation):
    """Return two tables that differ in one object of p1, with loose bounds."""
    tightness = rng.choice([1.0, 0.5, 0.0])

    def bounded(distance):
        return distance * (tightness + (1 - tightness) * rng.random())

    rows = {
        f"p{i}": [(bounded(d), d) for d in rng.sample([x + i / 64 for x in range(1, 60)], k)]
        for i in range(m)
    }
    changed = rows["p1"][1:]
    if relation == "replace_one":
        distance = rng.choice([0.5, 100.0, rng.randrange(1, 60) + 0.5])
        changed = [*changed, (bounded(distance), distance)]
    return [
        [{name: [item[c] for item in table[name]] for name in table} for c in (0, 1)]
        for table in (rows, rows | {"p1": changed})
    ]


@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
@pytest.mark.parametrize(("m", "k"), [(2, 5), (3, 4)])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_views_of_random_tables_stay_within_the_cost(m, k, epsilon, relation):
    rng = random.Random(f"{m} {k} {epsilon} {relation}")
    noises = [make_noise(epsilon, "certified", m=m, k=k), make_noise(epsilon, "exact", m=m, k=k)]
    for _ in range(30):
        pair = random_pair(rng, m, k, relation=relation)
        for noise in (*noises, *map(remove_shifts, noises)):
            views = [naive.view(*table, "p0", k, noise) for table in pair]
            if noise.promise == "exact":
                assert naive.excess_probability(*views, float(epsilon)) <= float(DELTA) * (
                    1 + ROUNDING
                )
            else:
                assert naive.privacy_loss(*views) <= float(epsilon) * (1 + ROUNDING)


def public_noise(epsilon, promise, *, m, k, first, is_shifted=True):
    """Return noise of second counts alone, with any public first count."""
    delta = DELTA if promise == "exact" else 0
    noise = CountNoise(epsilon, delta, n_providers=m, k=k, promise=promise, has_public_first=True)
    return SimpleNamespace(
        promise=promise,
        public_first=first,
        second_scale=noise.second_scale,
        second_shift=noise.second_shift if is_shifted or promise == "exact" else 0,
    )


@pytest.mark.parametrize("promise", ["exact", "certified"])
@pytest.mark.parametrize("first", [1, 2, 3])
def test_views_of_small_tables_with_public_counts_stay_within_the_cost(promise, first):
    noise = public_noise(1, promise, m=2, k=4, first=first, is_shifted=False)
    worst = 0.0
    for distances in itertools.permutations(range(7)):
        if any(a > b for a, b in itertools.pairwise(distances[:3])):
            continue  # the order of p0's three objects does not matter
        tables = [{"p0": distances[:3], "p1": (*distances[3:5], last)} for last in distances[5:]]
        for table in (tables[1], {"p0": distances[:3], "p1": distances[3:5]}):
            views = [naive.public_view(one, "p0", 4, noise) for one in (tables[0], table)]
            if promise == "exact":
                worst = max(worst, naive.excess_probability(*views, 1.0) / float(DELTA))
            else:
                worst = max(worst, naive.privacy_loss(*views))

    assert 0.3 < worst <= 1 + ROUNDING  # near 0, the views would not differ at all


@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
@pytest.mark.parametrize(("m", "k"), [(2, 5), (3, 5), (6, 4)])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_views_of_random_tables_with_public_counts_stay_within_the_cost(m, k, epsilon, relation):
    rng, worst = random.Random(f"{m} {k} {epsilon} {relation}"), 0.0
    for _ in range(100):
        objects = [distances for _, distances in random_pair(rng, m, k, relation=relation)]
        for first in range(1, k + 1):
            noise = public_noise(epsilon, "certified", m=m, k=k, first=first, is_shifted=False)
            views = [naive.public_view(table, "p0", k, noise) for table in objects]
            worst = max(worst, naive.privacy_loss(*views))
            noise = public_noise(epsilon, "exact", m=m, k=k, first=first)
            views = [naive.public_view(table, "p0", k, noise) for table in objects]
            excess = naive.excess_probability(*views, float(epsilon))
            assert excess <= float(DELTA) * (1 + ROUNDING)

    assert 0.9 * float(epsilon) < worst <= float(epsilon) * (1 + ROUNDING)


def test_half_the_noise_on_a_count_after_public_ones_is_detected():
    rng, noise = random.Random(2), public_noise(1, "certified", m=2, k=5, first=2, is_shifted=False)
    noise.second_scale /= 2
    worst = 0.0
    for _ in range(60):
        objects = [distances for _, distances in random_pair(rng, 2, 5, relation="replace_one")]
        views = [naive.public_view(table, "p0", 5, noise) for table in objects]
        worst = max(worst, naive.privacy_loss(*views))

    assert worst > 1.2


def test_algorithm_2_as_printed_costs_1_5_times_its_claim():
    rng, noise = random.Random(1), PaperNoise(1, n_providers=2, k=6)
    worst = 0.0
    for _ in range(200):
        pair = random_pair(rng, 2, 6, relation="replace_one")
        worst = max(
            worst,
            naive.privacy_loss(*(naive.printed_view(*table, "p0", 6, noise) for table in pair)),
        )

    assert worst == pytest.approx(1.5)
    assert noise.cost.epsilon == 2  # at most


def test_half_the_noise_on_the_second_count_is_detected():
    rng, noise = random.Random(2), remove_shifts(make_noise(1, "certified", k=5))
    noise.second_scale /= 2
    worst = 0.0
    for _ in range(60):
        pair = random_pair(rng, 2, 5, relation="replace_one")
        worst = max(
            worst, naive.privacy_loss(*(naive.view(*table, "p0", 5, noise) for table in pair))
        )

    assert worst > 1.2


def test_a_clamp_without_its_shift_is_detected():
    rng, noise = random.Random(3), remove_shifts(make_noise(1, "exact", k=5))
    noise.second_shift = 0
    worst = 0.0
    for _ in range(60):
        pair = random_pair(rng, 2, 5, relation="replace_one")
        views = [naive.view(*table, "p0", 5, noise) for table in pair]
        worst = max(worst, naive.excess_probability(*views, 1.0))

    assert worst > 10 * DELTA


def returned_objects(objects, prefixes, k):
    """Return the objects after each provider has returned its nearest ``prefixes[name]``."""
    names = sorted(objects)
    replies = {}
    for name in names:
        row = sorted(objects[name])[: prefixes[name]]
        reply = NearestReply(
            distances=np.array([item[0] for item in row], float),
            ties=np.array([item[1] for item in row], np.int64),
            ids=Names.pack(str(item[1]) for item in row),
            exhausted=len(row) < prefixes[name],
            exact=True,
            n_verified=len(row),
        )
        replies[name] = pad_nearest(reply, k)
    return ReturnedObjects.of(replies)


@st.composite
def small_tables(draw):
    """Draw objects (distance, tie key) of providers, numbers of returned objects, and k."""
    m, k = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    sizes = [draw(st.integers(0, 8)) for _ in range(m)]
    ties = iter(draw(st.permutations(range(sum(sizes)))))
    objects = {
        f"p{i}": [(float(draw(st.integers(0, 4))), next(ties)) for _ in range(n)]
        for i, n in enumerate(sizes)
    }
    return objects, {name: draw(st.integers(1, k)) for name in objects}, k


@settings(max_examples=cases(400), deadline=None)
@given(small_tables())
def test_counts_and_ranks_equal_the_naive_ones(tables):
    objects, prefixes, k = tables
    bounds = {name: sorted(distance for distance, _ in objects[name]) for name in objects}
    padded = {name: np.array((values + [np.inf] * k)[:k]) for name, values in bounds.items()}

    counts, ranks = (
        count_bounds(padded, k),
        returned_objects(objects, prefixes, k).ranks_of_last(),
    )

    assert counts == naive.first_counts(bounds, k)
    assert ranks == {name: naive.rank_of_last(objects, prefixes, name, k) for name in objects}


@pytest.mark.parametrize("noise", range(-8, 9))
def test_request_sizes_equal_the_formulas(noise):
    k = 5
    for count, rank in itertools.product(range(k + 1), range(1, k + 1)):
        first = first_request_size(count, noise, k)
        assert first == min(max(count + noise, 1), k)
        total = first + second_request_size(first, rank, noise, k)
        assert total == min(max(first + k - rank + noise, first), k)


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(5, 3), Fraction(200)])
@pytest.mark.parametrize("chance", [Fraction(1, 2), Fraction(1, 20), Fraction(1, 10**9)])
def test_the_shift_is_minimal(scale, chance):
    shift = min_shift(scale, chance)

    assert naive.noise_at_most(-shift, scale) <= chance * (1 + ROUNDING)
    assert shift == 0 or naive.noise_at_most(1 - shift, scale) > chance * (1 - ROUNDING)


def test_noise_has_the_mean_of_its_shift_and_is_clamped():
    bits = random.Random(0).randbytes
    noise = make_noise(2, "certified", m=8, k=128)
    draws = np.array(noise.draw_all(4000, bits=bits))

    assert noise.cost.epsilon == 2
    # the mean of 4,000 draws is within 5 standard errors of the shift, except once in 10^6 runs
    for column, scale, shift in (
        (0, noise.first_scale, noise.first_shift),
        (1, noise.second_scale, noise.second_shift),
    ):
        assert abs(draws[:, column].mean() - shift) < 5 * np.sqrt(2) * float(scale) / np.sqrt(4000)
    exact_noise = CountNoise(2, DELTA, n_providers=8, k=128)
    assert min(second for _, second in exact_noise.draw_all(4000, bits=bits)) == 0
