"""Random small federations of numbers on a line: ties, skew, empty ones, bounds that mislead."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from fedneighbors.federation.inprocess import run
from fedneighbors.methods.fedknn.metrics.plain import PlainMetric
from fedneighbors.methods.fedknn.provider import Provider
from fedneighbors.methods.fedknn.sessions import Found

KEY = b"tests"


class BoundedLine:
    """Numbers on a line, with lower bounds that are as loose as a seed says."""

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
        return run(
            algorithm(repr(self.query).encode(), self.k, name="q", **options), self.providers()
        ).result


@st.composite
def federations(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m = draw(st.integers(1, 6))
    spread = draw(st.sampled_from([2, 8, 10**6]))  # few values tie often
    own = draw(st.sampled_from(["even", "skewed", "one holds all", "blocks"]))
    n = draw(st.integers(0, 30))
    values = np.sort(rng.integers(0, spread, n)).astype(float)
    owner = {
        "even": rng.integers(0, m, n),
        "skewed": np.minimum(rng.geometric(0.6, n) - 1, m - 1),
        "one holds all": np.zeros(n, int),
        "blocks": np.arange(n) * m // max(n, 1),
    }[own]
    return Federation(
        tables={f"p{i}": values[owner == i].tolist() for i in range(m)},
        query=float(rng.integers(0, spread)),
        k=draw(st.integers(1, 12)),
        metric=BoundedLine(draw(st.sampled_from([0.0, 0.5, 1.0])), seed=3),
    )


__all__ = ["KEY", "BoundedLine", "Federation", "Found", "federations"]
