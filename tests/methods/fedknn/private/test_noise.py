"""Noise of DANN*: drawn once per query, charged to each user."""

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


def draw_noise(ledger, noise=None, *, user="search", query=b"q", **options):
    noise_of = noise_source(ledger, noise or make_noise(), query=query, user=user, **options)
    return noise_of(EPOCH, PROVIDERS)


def epsilons_spent(ledger, user=""):
    return [ledger.spent(provider, user).epsilon for provider in PROVIDERS]


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


def test_a_second_user_gets_the_same_noise_and_is_charged_for_it(ledger):
    first = draw_noise(ledger, user="anna")

    second = [draw_noise(ledger, user="ben") for _ in range(2)]
    third = draw_noise(ledger, user="cleo")

    assert second == [first, first]
    assert third == first
    assert [epsilons_spent(ledger, user) for user in ("anna", "ben", "cleo")] == [[1, 1, 1]] * 3
    assert epsilons_spent(ledger) == [3, 3, 3]


def test_a_user_without_budget_is_refused_stored_noise(ledger):
    ledger.set_budget("south", ApproxDP(1, "0.1"), user="ben")
    draw_noise(ledger, user="ben", query=b"another")
    draw_noise(ledger, user="anna")
    before = ledger.entries()

    with pytest.raises(BudgetExceeded):
        draw_noise(ledger, user="ben")

    assert ledger.entries() == before


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
        draw_noise(ledger, user="anna", bits=fail)

    assert spent_before_draw[0] == [1, 1, 1]
    second = draw_noise(ledger, user="ben")  # uses the noise charged to the first user
    assert draw_noise(ledger, user="anna") == second
    assert epsilons_spent(ledger, "anna") == epsilons_spent(ledger, "ben") == [1, 1, 1]


class RacingLedger(Ledger):
    """A ledger in which another user runs the query between lookup and charge."""

    run_other = None

    def users_of(self, query_ids):
        users = super().users_of(query_ids)
        run_other, self.run_other = self.run_other, None
        if run_other:
            run_other()
        return users


def test_concurrent_users_share_the_first_noise(tmp_path):
    path, noises = tmp_path / "ledger.db", []
    with open_ledger(path) as ledger, RacingLedger(path) as slow:
        slow.run_other = lambda: noises.append(draw_noise(ledger, user="anna"))

        noise = draw_noise(slow, user="ben")

        assert noises == [noise]
        assert epsilons_spent(ledger, "anna") == epsilons_spent(ledger, "ben") == [1, 1, 1]


def test_simultaneous_users_get_the_same_noise(tmp_path):
    noise, users = make_noise("0.01"), [f"user {number}" for number in range(8)]
    noise_by_user, start = {}, threading.Barrier(len(users))
    with open_ledger(tmp_path / "ledger.db") as ledger:

        def run_query(user):
            start.wait()
            noise_by_user[user] = draw_noise(ledger, noise, user=user)

        threads = [threading.Thread(target=run_query, args=(user,)) for user in users]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(noise_by_user) == users
        first = noise_by_user[users[0]]
        assert all(values == first for values in noise_by_user.values())
        assert [ledger.spent("north", user).epsilon for user in users] == [Fraction(1, 100)] * 8


def test_a_float_epsilon_is_read_by_its_decimal_notation():
    tenth = make_noise("0.1")
    float_tenth = make_noise(Fraction(0.1))  # the value of the float, not its decimal notation

    assert tenth.cost.epsilon == Fraction(1, 10) < float_tenth.cost.epsilon
    assert make_noise(0.1) == tenth != float_tenth
    assert tenth.identity != float_tenth.identity
