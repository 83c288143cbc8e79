"""A process that requests releases from a ledger and prints every step, until it is killed.

``python ledger_worker.py LEDGER SEED FIRST KIND END`` requests ids from ``q<FIRST>`` on, some of
them more than once. KIND is ``honest`` or a planted fault; END is ``none`` or a point at which
the process kills itself, such as ``stored:3`` for the third visit to this point.
"""

import hashlib
import os
import random
import signal
import sys
from fractions import Fraction

from fedneighbors.errors import BudgetExceeded
from fedneighbors.privacy._guarantees import ZCDP, PureDP
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.ledger._tables import ChargeTerms

N_IDS = 12  # ids to choose from at a time: some are requested again, by any process
MAX_STEPS = 100_000


class DrawError(Exception):
    """A draw that fails."""


def cost_of(query):
    """Return the cost of an id; the same in every process."""
    number = int(query[1:])
    return PureDP("0.01") if number % 3 == 0 else ZCDP(Fraction(1, 10_000 + number % 7))


def print_line(*words):
    """Print one line in one write, which is atomic in a pipe."""
    os.write(1, (" ".join(words) + "\n").encode())


class Points:
    """Kills the process at the n-th visit to a point."""

    def __init__(self, end):
        self.name, _, count = end.partition(":")
        self.n_left = int(count or 0)

    def reach(self, name):
        self.n_left -= name == self.name
        if name == self.name and not self.n_left:
            os.kill(os.getpid(), signal.SIGKILL)


class ReleasesFirst(Ledger):
    """A planted fault: the answer is published before it is charged."""

    def release(self, query_id, *, draw, publish, **terms):
        _, stored = self._tables.find(ChargeTerms(query_id, **terms))
        answer = stored or draw()
        publish(answer)
        return super().release(query_id, draw=lambda: answer, **terms)


class ChargesLate(Ledger):
    """A planted fault: noise is drawn inside the transaction that charges for it."""

    def release(self, query_id, *, draw, publish, **terms):
        charge = ChargeTerms(query_id, **terms)
        with self._file.transaction():
            _, stored = self._tables.find(charge)
            if stored is not None:
                return stored
            self._tables.check_budgets(charge)
            self._tables.add_charge(charge)
            answer = draw()
            self._tables.add_answer(charge, answer)
        return answer


class StoresLate(Ledger):
    """A planted fault: the answer is published before it is stored."""

    def release(self, query_id, *, draw, publish, **terms):
        charge = ChargeTerms(query_id, **terms)
        answer = self._reserve([charge]).get(query_id)
        if answer is None:
            answer = draw()
            publish(answer)
            self._store([charge], [answer])
        return answer


class Honest(Ledger):
    """A ledger without a fault, with the interface of the others."""

    def release(self, query_id, *, publish, **rest):
        return super().release(query_id, **rest)


KINDS = {
    "honest": Honest,
    "releases-first": ReleasesFirst,
    "charges-late": ChargesLate,
    "stores-late": StoresLate,
}


def main(path, seed, first, kind, end):
    rng = random.Random(f"{seed} {first}")
    points = Points(end)
    with KINDS[kind](path, must_exist=True) as ledger:
        for step in range(MAX_STEPS):
            ask(ledger, f"q{int(first) + step // 2 + rng.randrange(N_IDS)}", rng, points)


def ask(ledger, query, rng, points):
    fails, size = rng.random() < 0.05, 200_000 if rng.random() < 0.05 else 16

    def draw():
        print_line("drawing", query)
        points.reach("reserved")
        if fails:
            print_line("failing", query)
            raise DrawError
        answer = os.urandom(size)
        points.reach("drawn")
        return answer

    def publish(answer):
        print_line("released", query, hashlib.sha256(answer).hexdigest())
        points.reach("published")

    terms = {"dataset": "visits", "user": f"user-{len(query) % 2}", "cost": cost_of(query)}
    try:
        answer = ledger.release(query, draw=draw, publish=publish, **terms)
    except BudgetExceeded:
        print_line("refused", query)
    except DrawError:
        points.reach("failed")
    else:
        points.reach("stored")
        publish(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
