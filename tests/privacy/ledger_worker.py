"""A process that requests releases from a ledger and prints every step, until it is killed.

``python ledger_worker.py LEDGER SEED FIRST KIND END`` asks for ids from ``q<FIRST>`` on, some of
them more than once. KIND is ``honest`` or a planted fault; END is ``none`` or a point at which
the process kills itself, such as ``stored:3``: the third time that it gets there.
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
    """A draw that went wrong."""


def cost_of(query):
    """Return the terms of an id; the same for every process."""
    number = int(query[1:])
    return PureDP("0.01") if number % 3 == 0 else ZCDP(Fraction(1, 10_000 + number % 7))


def tell(*words):
    """Print one line atomically: a pipe writes this much in one piece."""
    os.write(1, (" ".join(words) + "\n").encode())


class Points:
    """Kills the process when it gets to a point for the n-th time."""

    def __init__(self, end):
        self.name, _, count = end.partition(":")
        self.left = int(count or 0)

    def reach(self, name):
        self.left -= name == self.name
        if name == self.name and not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


class ReleasesFirst(Ledger):
    """A planted fault: the answer is out before anything is charged."""

    def release(self, query_id, *, draw, publish, **terms):
        _, stored = self._tables.find(ChargeTerms(query_id, **terms))
        answer = stored or draw()
        publish(answer)
        return super().release(query_id, draw=lambda: answer, **terms)


class ChargesLate(Ledger):
    """A planted fault: noise is drawn inside the transaction that charges for it."""

    def release(self, query_id, *, draw, publish, **terms):
        named = ChargeTerms(query_id, **terms)
        with self._file.transaction():
            _, stored = self._tables.find(named)
            if stored is not None:
                return stored
            self._tables.check_budgets(named)
            self._tables.add_charge(named)
            answer = draw()
            self._tables.add_answer(named, answer)
        return answer


class StoresLate(Ledger):
    """A planted fault: the answer is out before it is stored."""

    def release(self, query_id, *, draw, publish, **terms):
        named = ChargeTerms(query_id, **terms)
        answer = self._reserve([named]).get(query_id)
        if answer is None:
            answer = draw()
            publish(answer)
            self._store([named], [answer])
        return answer


class Honest(Ledger):
    """Return the current ledger."""

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
        tell("drawing", query)
        points.reach("reserved")
        if fails:
            tell("failing", query)
            raise DrawError
        answer = os.urandom(size)
        points.reach("drawn")
        return answer

    def publish(answer):
        tell("released", query, hashlib.sha256(answer).hexdigest())
        points.reach("told")

    terms = {"dataset": "visits", "user": f"user-{len(query) % 2}", "cost": cost_of(query)}
    try:
        answer = ledger.release(query, draw=draw, publish=publish, **terms)
    except BudgetExceeded:
        tell("refused", query)
    except DrawError:
        points.reach("failed")
    else:
        points.reach("stored")
        publish(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
