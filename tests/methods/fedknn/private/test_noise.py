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


def ask(ledger, noise=None, *, user="search", query=b"q", **options):
    noise_of = noise_source(ledger, noise or make_noise(), query=query, user=user, **options)
    return noise_of(EPOCH, PROVIDERS)


def spent(ledger, user=""):
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
    first = ask(ledger)

    again = ask(ledger, SAME_NOISE[notation])

    assert again == first
    assert spent(ledger) == [1, 1, 1]


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


def test_other_queries_epochs_and_providers_get_own_noise(ledger):
    noise = make_noise("0.001")

    noise_of = noise_source(ledger, noise, query=b"q")
    drawn = [
        *noise_of(b"first", PROVIDERS).values(),
        *noise_of(b"second", PROVIDERS).values(),
        *ask(ledger, noise, query=b"other").values(),
    ]

    # scales of 5,000 and more: two of nine pairs are equal once in 10^6 runs
    assert len(set(drawn)) == 9


def test_a_second_user_gets_the_same_noise_and_is_charged_for_it(ledger):
    first = ask(ledger, user="anna")

    second = [ask(ledger, user="ben") for _ in range(2)]
    third = ask(ledger, user="cleo")

    assert second == [first, first]
    assert third == first
    assert [spent(ledger, user) for user in ("anna", "ben", "cleo")] == [[1, 1, 1]] * 3
    assert spent(ledger) == [3, 3, 3]


def test_a_user_without_budget_is_refused_stored_noise(ledger):
    ledger.set_budget("south", ApproxDP(1, "0.1"), user="ben")
    ask(ledger, user="ben", query=b"another")
    ask(ledger, user="anna")
    before = ledger.entries()

    with pytest.raises(BudgetExceeded):
        ask(ledger, user="ben")

    assert ledger.entries() == before


def test_if_one_budget_is_used_up_none_is_charged(ledger):
    ledger.set_budget("west", ApproxDP("0.5", "0.1"))
    before = ledger.entries()

    with pytest.raises(BudgetExceeded):
        ask(ledger)

    assert ledger.entries() == before


def test_all_charges_and_all_noise_take_one_commit_each(ledger, monkeypatch):
    commits, transaction = [], ledger._file.transaction

    @contextmanager
    def count_entries():
        with transaction():
            yield
        commits.append(len(ledger.entries()))

    monkeypatch.setattr(ledger._file, "transaction", count_entries)
    before = len(ledger.entries())
    ask(ledger)
    ask(ledger)

    assert commits == [before + 3, before + 6]


def test_noise_is_drawn_after_the_charge(ledger):
    charged = []

    def fail(n_bytes):
        charged.append(spent(ledger))
        return b""

    with pytest.raises(ValueError, match="random bytes"):
        ask(ledger, user="anna", bits=fail)

    assert charged[0] == [1, 1, 1]
    second = ask(ledger, user="ben")  # uses the noise charged to the first user
    assert ask(ledger, user="anna") == second
    assert spent(ledger, "anna") == spent(ledger, "ben") == [1, 1, 1]


class RacingLedger(Ledger):
    """A ledger in which another user runs the query between lookup and charge."""

    other = None

    def users_of(self, query_ids):
        users = super().users_of(query_ids)
        other, self.other = self.other, None
        if other:
            other()
        return users


def test_concurrent_users_share_the_first_noise(tmp_path):
    path, found = tmp_path / "ledger.db", []
    with open_ledger(path) as ledger, RacingLedger(path) as slow:
        slow.other = lambda: found.append(ask(ledger, user="anna"))

        mine = ask(slow, user="ben")

        assert found == [mine]
        assert spent(ledger, "anna") == spent(ledger, "ben") == [1, 1, 1]


def test_simultaneous_users_get_the_same_noise(tmp_path):
    noise, users = make_noise("0.01"), [f"user {number}" for number in range(8)]
    found, start = {}, threading.Barrier(len(users))
    with open_ledger(tmp_path / "ledger.db") as ledger:

        def run_query(user):
            start.wait()
            found[user] = ask(ledger, noise, user=user)

        threads = [threading.Thread(target=run_query, args=(user,)) for user in users]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(found) == users
        assert all(drawn == found[users[0]] for drawn in found.values())
        assert [ledger.spent("north", user).epsilon for user in users] == [Fraction(1, 100)] * 8


def test_distributions_with_different_parameters_differ():
    tenth = make_noise("0.1")
    nearly = make_noise(Fraction(0.1))  # the value of the float, not its decimal notation

    assert tenth.cost.epsilon == Fraction(1, 10) < nearly.cost.epsilon
    assert make_noise(0.1) == tenth != nearly
    assert tenth.identity != nearly.identity
