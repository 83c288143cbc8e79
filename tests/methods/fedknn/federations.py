"""Random small federations of numbers on a line: ties, skew, empty providers, loose bounds."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from fedneighbors.federation._inprocess import run
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn.metrics._function import FunctionMetric

KEY = b"tests"


class BoundedLine:
    """Numbers on a line, with lower bounds that are lowered at random by up to ``looseness``."""

    name = "bounded line"

    def __init__(self, looseness, seed):
        self.looseness, self.seed = looseness, seed
        self.exact = FunctionMetric(lambda a, b: abs(a - b))

    def distance(self, first, second):
        return self.exact.distance(first, second)

    def index(self, objects, *, ranks):
        inner = self.exact.index(objects, ranks=ranks)
        return _BoundedIndex(inner, self, np.array(objects, float))


class _BoundedIndex:
    def __init__(self, inner, metric, objects):
        self.inner, self.metric, self.objects = inner, metric, objects
        self.n_objects = inner.n_objects

    def open(self, query):
        session = self.inner.open(query)
        rng = np.random.default_rng(self.metric.seed)
        shrink = 1 - self.metric.looseness * rng.random(len(self.objects))
        bounds = np.abs(self.objects - query) * shrink
        session.bounds = lambda deadline_s=None: bounds
        return session


@dataclass(frozen=True)
class Federation:
    """The tables of the providers, a query, and the number of neighbors."""

    tables: dict
    query: float
    k: int
    metric: BoundedLine

    def providers(self):
        return [
            Provider.of(name, table, self.metric, decode=lambda raw: float(raw), key=KEY)
            for name, table in self.tables.items()
        ]

    def search(self, algorithm, **options):
        return self.run(algorithm, **options).result

    def run(self, algorithm, **options):
        query = repr(self.query).encode()
        return run(algorithm(query, self.k, name="q", **options), self.providers())


SPREADS = [2, 8, 10**6]
"""Numbers of possible values; few values give many ties."""

PLACEMENTS = ["even", "skewed", "one holds all", "blocks"]
UNITS = [1.0, 1.0, 0.1, 1e-9, 1e12]
LOOSENESS = [0.0, 0.5, 1.0]


@st.composite
def federations(draw):
    return make_federation(
        np.random.default_rng(draw(st.integers(0, 2**32 - 1))),
        m=draw(st.integers(1, 6)),
        n=draw(st.integers(0, 30)),
        k=draw(st.integers(1, 12)),
        spread=draw(st.sampled_from(SPREADS)),
        placement=draw(st.sampled_from(PLACEMENTS)),
        unit=draw(st.sampled_from(UNITS)),
        looseness=draw(st.sampled_from(LOOSENESS)),
    )


def random_federation(rng):
    """Draw a federation from a generator, for tests of many federations without Hypothesis."""
    return make_federation(
        rng,
        m=int(rng.integers(1, 7)),
        n=int(rng.integers(0, 31)),
        k=int(rng.integers(1, 13)),
        spread=int(rng.choice(SPREADS)),
        placement=str(rng.choice(PLACEMENTS)),
        unit=float(rng.choice(UNITS)),
        looseness=float(rng.choice(LOOSENESS)),
    )


def make_federation(rng, *, m, n, k, spread, placement, unit, looseness):
    values = unit * np.sort(rng.integers(0, spread, n))
    owner = {
        "even": rng.integers(0, m, n),
        "skewed": np.minimum(rng.geometric(0.6, n) - 1, m - 1),
        "one holds all": np.zeros(n, int),
        "blocks": np.arange(n) * m // max(n, 1),
    }[placement]
    return Federation(
        tables={f"p{i}": values[owner == i].tolist() for i in range(m)},
        query=float(unit * rng.integers(0, spread)),
        k=k,
        metric=BoundedLine(looseness, seed=3),
    )
