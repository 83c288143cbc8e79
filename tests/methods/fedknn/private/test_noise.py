"""Noise of DANN*: drawn and charged once per query."""

import threading
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from fedneighbors.errors import BudgetExceeded
from fedneighbors.methods.fedknn.private._noise import CountNoise, PaperNoise, noise_source
from fedneighbors.privacy._guarantees import ApproxDP
from fedneighbors.privacy.ledger._ledger import Ledger

PROVIDERS = ("north", "south", "west")
EPOCH = b"first"


def open_ledger(path=":memory:", epsilon=100):
    ledger = Ledger(path, party="broker")
    for provider in PROVIDERS:
        ledger.set_budget(provider, ApproxDP(epsilon, "0.1"))
    return ledger


@pytest.fixture
def ledger():
    with open_ledger() as new:
        yield new


def make_noise(epsilon=1, delta="1e-6", *, k=5, **options):
    return CountNoise(epsilon, delta, n_providers=3, k=k, **options)


def draw_noise(ledger, noise=None, *, query=b"q", **options):
    noise_of = noise_source(ledger, noise or make_noise(), query=query, **options)
    return noise_of(EPOCH, PROVIDERS)


def epsilons_spent(ledger):
    return [ledger.spent(provider).epsilon for provider in PROVIDERS]


SAME_NOISE = {
    "as a float": make_noise(1.0, 1e-6),
    "as text": make_noise("1", "0.000001"),
    "as fractions": make_noise(Fraction(2, 2), Fraction(1, 10**6)),
    "as decimals": make_noise(Decimal("1.00"), Decimal("1E-6")),
    "with a k of numpy": make_noise(k=np.int64(5)),
    "with a failure that exact answers do not use": make_noise(failure="0.3"),
}


@pytest.mark.parametrize("notation", SAME_NOISE)
def test_equal_parameters_in_any_notation_are_one_release(ledger, notation):
    first = draw_noise(ledger)

    again = draw_noise(ledger, SAME_NOISE[notation])

    assert again == first
    assert epsilons_spent(ledger) == [1, 1, 1]


DIFFERENT_NOISE = [
    make_noise(),
    make_noise("1.1"),
    make_noise(1, "1e-7"),
    make_noise(k=6),
    make_noise(1, 0, promise="certified"),
    make_noise(1, 0, promise="certified", failure="0.0001"),
    PaperNoise(1, n_providers=3, k=5),
    PaperNoise(1, n_providers=3, k=5, failure="0.2"),
    PaperNoise(1, n_providers=3, k=6),
]


def test_other_parameters_have_other_identities():
    assert len({noise.identity for noise in DIFFERENT_NOISE}) == len(DIFFERENT_NOISE)


def test_noise_differs_by_query_epoch_and_provider(ledger):
    noise = make_noise("0.001")

    noise_of = noise_source(ledger, noise, query=b"q")
    noises = [
        *noise_of(b"first", PROVIDERS).values(),
        *noise_of(b"second", PROVIDERS).values(),
        *draw_noise(ledger, noise, query=b"other").values(),
    ]

    # scales of 5,000 and more: two of nine pairs are equal once in 10^6 runs
    assert len(set(noises)) == 9


def test_if_one_budget_is_too_small_none_is_charged(ledger):
    ledger.set_budget("west", ApproxDP("0.5", "0.1"))
    before = ledger.entries()

    with pytest.raises(BudgetExceeded):
        draw_noise(ledger)

    assert ledger.entries() == before


def test_charges_take_one_commit_and_noise_another(ledger, monkeypatch):
    commits, transaction = [], ledger._file.transaction

    @contextmanager
    def count_entries():
        with transaction():
            yield
        commits.append(len(ledger.entries()))

    monkeypatch.setattr(ledger._file, "transaction", count_entries)
    before = len(ledger.entries())
    draw_noise(ledger)
    draw_noise(ledger)

    assert commits == [before + 3, before + 6]


def test_noise_is_drawn_after_the_charge(ledger):
    spent_before_draw = []

    def fail(n_bytes):
        spent_before_draw.append(epsilons_spent(ledger))
        return b""

    with pytest.raises(ValueError, match="random bytes"):
        draw_noise(ledger, bits=fail)

    assert spent_before_draw[0] == [1, 1, 1]
    assert draw_noise(ledger) == draw_noise(ledger)
    assert epsilons_spent(ledger) == [1, 1, 1]


def test_simultaneous_searches_get_the_same_noise(tmp_path):
    noises, start = [], threading.Barrier(8)
    with open_ledger(tmp_path / "ledger.db") as ledger:

        def run_query():
            start.wait()
            noises.append(draw_noise(ledger))

        threads = [threading.Thread(target=run_query) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert noises == [noises[0]] * 8
        assert epsilons_spent(ledger) == [1, 1, 1]


def test_a_float_epsilon_is_read_by_its_decimal_notation():
    tenth = make_noise("0.1")
    float_tenth = make_noise(Fraction(0.1))  # the value of the float, not its decimal notation

    assert tenth.cost.epsilon == Fraction(1, 10) < float_tenth.cost.epsilon
    assert make_noise(0.1) == tenth != float_tenth
    assert tenth.identity != float_tenth.identity
