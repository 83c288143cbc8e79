"""Random small federations of numbers on a line: ties, skew, empty ones, bounds that mislead."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from fedneighbors.federation._inprocess import run
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn.metrics._plain import PlainMetric
from fedneighbors.methods.fedknn.metrics._sessions import Found

KEY = b"tests"


class BoundedLine:
    """Numbers on a line, with lower bounds of seeded looseness."""

    name = "bounded line"

    def __init__(self, looseness, seed):
        self.looseness, self.seed = looseness, seed
        self.plain = PlainMetric(lambda a, b: abs(a - b))

    def distance(self, first, second):
        return self.plain.distance(first, second)

    def index(self, objects, *, ranks):
        inner = self.plain.index(objects, ranks=ranks)
        return _BoundedIndex(inner, self, np.array(objects, float))


class _BoundedIndex:
    def __init__(self, inner, metric, objects):
        self.inner, self.metric, self.objects = inner, metric, objects
        self.n_objects = inner.n_objects

    def open(self, query):
        session = self.inner.open(query)
        rng = np.random.default_rng(self.metric.seed)
        shrink = 1 - self.metric.looseness * rng.random(len(self.objects))
        low = np.abs(self.objects - query) * shrink
        session.bounds = lambda: low
        return session


@dataclass(frozen=True)
class Federation:
    tables: dict
    query: float
    k: int
    metric: BoundedLine

    def providers(self):
        return [
            Provider(name, table, self.metric, decode=lambda raw: float(raw), key=KEY)
            for name, table in self.tables.items()
        ]

    def ask(self, algorithm, **options):
        return self.run(algorithm, **options).result

    def run(self, algorithm, **options):
        query = repr(self.query).encode()
        return run(algorithm(query, self.k, name="q", **options), self.providers())


SPREADS = [2, 8, 10**6]
"""Few values tie often."""

OWNERS = ["even", "skewed", "one holds all", "blocks"]
UNITS = [1.0, 1.0, 0.1, 1e-9, 1e12]
LOOSENESS = [0.0, 0.5, 1.0]


@st.composite
def federations(draw):
    return made(
        np.random.default_rng(draw(st.integers(0, 2**32 - 1))),
        m=draw(st.integers(1, 6)),
        n=draw(st.integers(0, 30)),
        k=draw(st.integers(1, 12)),
        spread=draw(st.sampled_from(SPREADS)),
        own=draw(st.sampled_from(OWNERS)),
        unit=draw(st.sampled_from(UNITS)),
        looseness=draw(st.sampled_from(LOOSENESS)),
    )


def random_federation(rng):
    """Draw a federation from a generator, as the strategy does, for campaigns of many."""
    return made(
        rng,
        m=int(rng.integers(1, 7)),
        n=int(rng.integers(0, 31)),
        k=int(rng.integers(1, 13)),
        spread=int(rng.choice(SPREADS)),
        own=str(rng.choice(OWNERS)),
        unit=float(rng.choice(UNITS)),
        looseness=float(rng.choice(LOOSENESS)),
    )


def made(rng, *, m, n, k, spread, own, unit, looseness):
    values = unit * np.sort(rng.integers(0, spread, n))
    owner = {
        "even": rng.integers(0, m, n),
        "skewed": np.minimum(rng.geometric(0.6, n) - 1, m - 1),
        "one holds all": np.zeros(n, int),
        "blocks": np.arange(n) * m // max(n, 1),
    }[own]
    return Federation(
        tables={f"p{i}": values[owner == i].tolist() for i in range(m)},
        query=float(unit * rng.integers(0, spread)),
        k=k,
        metric=BoundedLine(looseness, seed=3),
    )


__all__ = ["KEY", "BoundedLine", "Federation", "Found", "federations", "random_federation"]
