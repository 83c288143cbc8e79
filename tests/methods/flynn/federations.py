"""Random small federations: tables, labels, owners and settings of every kind."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from hypothesis import strategies as st

from fedneighbors.federation._inprocess import run
from fedneighbors.methods.flynn._features import n_expanded
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.protocol import FlyNNParty, coordinate

DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float32", "float64")
LABELS = {
    "integers": np.array([-3, 0, 7]),
    "strings": np.array(["ill", "well", "Zürich"]),
    "objects": np.array(["b", "a", "c"], dtype=object),
    "floats": np.array([-1.0, 1.0, 2.0]),
    "booleans": np.array([False, True, True]),
}


@dataclass(frozen=True)
class Federation:
    """A table, the owners of its rows, and training parameters."""

    x: Any
    y: Any
    owner: Any
    n_parties: int
    settings: FlyNNSettings

    def party(self, name, rows):
        return FlyNNParty(name, self.x[rows], self.y[rows])

    def parties(self):
        """Return one party for each number below n_parties, some of them without rows."""
        return [
            self.party(f"party {k}", np.flatnonzero(self.owner == k)) for k in range(self.n_parties)
        ]

    def pooled(self):
        return [self.party("all", np.arange(len(self.y)))]


def train(parties, settings, **options):
    return run(coordinate(settings), parties, **options).result


def table(rng, dtype, shape):
    """Return random values that fill the dtype's range or tie often; a third of the rows repeat."""
    kind = np.dtype(dtype).kind
    if rng.random() < 0.4:
        x = rng.integers(0, 3, shape)
    elif kind in "iu":
        limits = np.iinfo(dtype)
        x = rng.integers(max(limits.min, -(2**40)), min(limits.max, 2**40), shape)
    else:
        x = rng.normal(size=shape) * 10.0 ** rng.integers(-8, 9, shape[1])
    x = x.astype(dtype)
    duplicates = rng.integers(0, shape[0], shape[0] // 3)
    x[: len(duplicates)] = x[duplicates]
    return x


@st.composite
def federations(
    draw, expansions=("none", "mirror", "population", "thermometer", "fourier", "auto")
):
    n_rows = draw(st.integers(2, 14))
    n_features = draw(st.integers(1, 6))
    n_parties = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = table(rng, draw(st.sampled_from(DTYPES)), (n_rows, n_features))
    names = LABELS[draw(st.sampled_from(sorted(LABELS)))]
    labels = rng.integers(0, len(names), n_rows)
    labels[:2] = 0, 1  # at least two classes
    by_class = draw(st.booleans())
    owner = labels % n_parties if by_class else rng.integers(0, n_parties, n_rows)
    expansion = draw(st.sampled_from(expansions))
    width = n_features if expansion == "auto" else n_expanded(expansion, n_features)
    n_units = draw(st.integers(1, 60))
    settings = FlyNNSettings(
        n_units=n_units,
        n_inputs=draw(st.integers(1, min(8, width))),
        n_active=draw(st.integers(1, n_units)),
        decay=draw(st.sampled_from([None, "auto", 0.0, 0.5, 0.9, 1.0])),
        standardize=draw(st.sampled_from([True, False, "feature", "global"])),
        expand=None if expansion == "none" else expansion,
        class_normalized=draw(st.sampled_from([True, False, "auto"])),
        seed=draw(st.integers(0, 9)),
    )
    if draw(st.booleans()):
        x = draw(st.sampled_from([scipy.sparse.csr_matrix, scipy.sparse.csr_array]))(x)
    return Federation(x, names[labels], owner, n_parties, settings)
