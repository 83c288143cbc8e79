"""Noise under a ledger: drawn once per query, charged to each user."""

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


def opened(path=":memory:", epsilon=100):
    ledger = Ledger(path, party="broker")
    for provider in PROVIDERS:
        ledger.set_budget(provider, ApproxDP(epsilon, "0.1"))
    return ledger


@pytest.fixture
def ledger():
    with opened() as made:
        yield made


def law_of(epsilon=1, delta="1e-6", *, k=5, **options):
    return CountNoise(epsilon, delta, n_providers=3, k=k, **options)


def ask(ledger, law=None, *, user="search", query=b"q", **options):
    noise_of = noise_source(ledger, law or law_of(), query=query, user=user, **options)
    return noise_of(EPOCH, PROVIDERS)


def spent(ledger, user=""):
    return [ledger.spent(provider, user).epsilon for provider in PROVIDERS]


SAME_LAW = {
    "as a float": law_of(1.0, 1e-6),
    "as text": law_of("1", "0.000001"),
    "as fractions": law_of(Fraction(2, 2), Fraction(1, 10**6)),
    "as decimals": law_of(Decimal("1.00"), Decimal("1E-6")),
    "with a k of numpy": law_of(k=np.int64(5)),
    "with a failure that exact answers never have": law_of(failure="0.3"),
}


@pytest.mark.parametrize("how", SAME_LAW)
def test_a_law_that_is_written_in_another_way_is_the_same_law(ledger, how):
    first = ask(ledger)

    again = ask(ledger, SAME_LAW[how])

    assert again == first
    assert spent(ledger) == [1, 1, 1]


LAWS = [
    law_of(),
    law_of("1.1"),
    law_of(1, "1e-7"),
    law_of(k=6),
    law_of(1, 0, promise="certified"),
    law_of(1, 0, promise="certified", failure="0.0001"),
    PaperNoise(1, n_providers=3, k=5),
    PaperNoise(1, n_providers=3, k=5, failure="0.2"),
    PaperNoise(1, n_providers=3, k=6),
]


def test_other_laws_are_other_questions():
    assert len({law.identity for law in LAWS}) == len(LAWS)


def test_other_queries_epochs_and_providers_get_own_noise(ledger):
    law = law_of("0.001")

    noise_of = noise_source(ledger, law, query=b"q")
    drawn = [
        *noise_of(b"first", PROVIDERS).values(),
        *noise_of(b"second", PROVIDERS).values(),
        *ask(ledger, law, query=b"other").values(),
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


def test_a_user_without_budget_is_refused_known_answers_too(ledger):
    ledger.set_budget("south", ApproxDP(1, "0.1"), user="ben")
    ask(ledger, user="ben", query=b"another")
    ask(ledger, user="anna")
    before = ledger.entries()

    with pytest.raises(BudgetExceeded):
        ask(ledger, user="ben")

    assert ledger.entries() == before


def test_one_provider_without_room_means_that_none_is_charged(ledger):
    ledger.set_budget("west", ApproxDP("0.5", "0.1"))
    before = ledger.entries()

    with pytest.raises(BudgetExceeded):
        ask(ledger)

    assert ledger.entries() == before


def test_charges_share_one_commit_noises_another(ledger, monkeypatch):
    commits, transaction = [], ledger._file.transaction

    @contextmanager
    def counted():
        with transaction():
            yield
        commits.append(len(ledger.entries()))

    monkeypatch.setattr(ledger._file, "transaction", counted)
    before = len(ledger.entries())
    ask(ledger)
    ask(ledger)

    assert commits == [before + 3, before + 6]


def test_noise_is_drawn_after_the_charge_which_stays(ledger):
    charged = []

    def fails(n_bytes):
        charged.append(spent(ledger))
        return b""

    with pytest.raises(ValueError, match="random bytes"):
        ask(ledger, user="anna", bits=fails)

    assert charged[0] == [1, 1, 1]
    second = ask(ledger, user="ben")  # uses the noise charged to the first user
    assert ask(ledger, user="anna") == second
    assert spent(ledger, "anna") == spent(ledger, "ben") == [1, 1, 1]


class Overtaken(Ledger):
    """A ledger in which another user asks the same between lookup and charge."""

    other = None

    def users_of(self, query_ids):
        seen = super().users_of(query_ids)
        other, self.other = self.other, None
        if other:
            other()
        return seen


def test_concurrent_users_share_the_first_noise(tmp_path):
    path, found = tmp_path / "ledger.db", []
    with opened(path) as ledger, Overtaken(path) as slow:
        slow.other = lambda: found.append(ask(ledger, user="anna"))

        mine = ask(slow, user="ben")

        assert found == [mine]
        assert spent(ledger, "anna") == spent(ledger, "ben") == [1, 1, 1]


def test_simultaneous_users_get_the_same_noise(tmp_path):
    law, users = law_of("0.01"), [f"user {number}" for number in range(8)]
    found, start = {}, threading.Barrier(len(users))
    with opened(tmp_path / "ledger.db") as ledger:

        def asking(user):
            start.wait()
            found[user] = ask(ledger, law, user=user)

        threads = [threading.Thread(target=asking, args=(user,)) for user in users]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(found) == users
        assert all(noise == found[users[0]] for noise in found.values())
        assert [ledger.spent("north", user).epsilon for user in users] == [Fraction(1, 100)] * 8


def test_distributions_with_different_parameters_differ():
    tenth, nearly = law_of("0.1"), law_of(Fraction(0.1))  # the float itself, not its decimal

    assert tenth.cost.epsilon == Fraction(1, 10) < nearly.cost.epsilon
    assert law_of(0.1) == tenth != nearly
    assert tenth.identity != nearly.identity
