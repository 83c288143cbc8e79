"""OVA Omentum: rows read from OpenML's file, or generated rows of its shape."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets._catalog import DATA_VARIABLE
from fedneighbors.datasets._dataset import Dataset
from fedneighbors.datasets._text_tables import is_arff, read_arff
from fedneighbors.errors import DataError

OMENTUM_FEATURES = 10_936
_N_ROWS, _N_POSITIVE, _N_TISSUES = 1_545, 77, 8
_ROW_NUMBERS = "id_ref"  # numbers the samples; no property of them
_LOW, _SPREAD = 7.0, 2.0  # log level of a gene
_N_PATHWAYS, _PATHWAY = 40, 0.12  # 40 x .12^2: pathways have over a third of the variance
_NOISE = 1.0
_TISSUE_SHARE, _TISSUE_SHIFT = 0.02, 1.5
_OWN_SHARE, _OWN_SHIFT = 0.003, 0.8


def load_omentum() -> Dataset:
    """Return OVA Omentum from its file, else generated rows.

    The file is OpenML's set 1139, ``OVA_Omentum.arff`` or ``OVA_Omentum.arff.gz``, in any case of
    letters, in the folder ``fedpnn/`` of the one that the environment variable
    ``FEDNEIGHBORS_DATA`` names. Nothing is downloaded. What came is told by ``name``:
    ``"OVA Omentum"`` or ``"omentum_surrogate"``.

    Raises
    ------
    DataError
        If the file is damaged, or is another one.
    """
    folder = Path(os.environ.get(DATA_VARIABLE) or ".") / "fedpnn"
    files = [path for path in sorted(folder.glob("*")) if _is_omentum(path)]
    return read_omentum(files[0]) if files else omentum_surrogate()


def _is_omentum(path: Path) -> bool:
    return is_arff(path) and path.name.lower().startswith("ova_omentum.")


def read_omentum(path: Path) -> Dataset:
    """Read OVA Omentum from OpenML's file.

    Parameters
    ----------
    path : Path
        The last nominal column holds the labels ``Omentum`` and ``Other``; a column ``ID_REF``,
        which numbers the samples, is left out.

    Returns
    -------
    Dataset
        ``x`` is float64, NaN for missing cells; ``y`` is 1 for omentum and 0 for others.

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is damaged, or has no such labels.
    """
    table = read_arff(path)
    nominal = [name for name, cells in table.columns.items() if cells.dtype == np.object_]
    words = table.columns[nominal[-1]].tolist() if nominal else []
    if {str(word).lower() for word in words} != {"omentum", "other"}:
        raise DataError(
            f"{path} has no labels 'Omentum' and 'Other'; expected OpenML's set OVA_Omentum"
        )
    names = [n for n in table.names if n not in nominal and n.lower() != _ROW_NUMBERS]
    if not names:
        raise DataError(f"{path} has no numeric column; expected OpenML's set OVA_Omentum")
    x = np.column_stack([np.asarray(table.columns[name], np.float64) for name in names])
    y = np.array([str(word).lower() == "omentum" for word in words], np.int64)
    return Dataset("OVA Omentum", x, y, tuple(names), str(path))


def omentum_surrogate(*, n_features: int = OMENTUM_FEATURES, seed: int = 0) -> Dataset:
    """Generate rows of OVA Omentum's shape.

    One tissue of nine differs in few genes.

    1,545 rows, 77 of them positive. A gene's logarithm has a level N(7, 2^2), varies with 40
    pathways that all rows have (loadings N(0, .12^2), activities N(0, 1)) and by noise N(0, 1). The
    rows that are not positive come from eight tissues of nearly equal size; each shifts 2 % of the
    genes, drawn at random, by N(0, 1.5^2). Positive rows have the shifts of the first tissue, as
    tumors of the omentum mostly come from one other organ, and shifts of their own, N(0, .8^2), on
    .3 % of the genes. Rows are in random order.

    It is not the real set, and scores on it have no meaning for tissues. It has the real set's
    number of rows, genes and positives, and its property that most genes carry no information.

    Parameters
    ----------
    n_features : int
        Genes.
    seed : int
        Seed of the generator.

    Returns
    -------
    Dataset
        Named ``omentum_surrogate``; ``x`` is float64, ``y`` 1 for positive rows.

    Raises
    ------
    ValueError
        If ``n_features`` is below 1.

    Examples
    --------
    >>> data = omentum_surrogate(n_features=30)
    >>> data.x.shape, int(data.y.sum())
    ((1545, 30), 77)
    """
    if n_features < 1:
        raise ValueError(f"expected n_features of 1 or more, got {n_features!r}")
    rng = np.random.Generator(np.random.PCG64(seed))
    y = (rng.permutation(_N_ROWS) < _N_POSITIVE).astype(np.int64)
    tissue = np.where(y == 1, 0, rng.integers(_N_TISSUES, size=_N_ROWS))
    levels = rng.normal(_LOW, _SPREAD, n_features)
    loadings = rng.normal(0.0, _PATHWAY, (_N_PATHWAYS, n_features))
    x = levels + rng.normal(size=(_N_ROWS, _N_PATHWAYS)) @ loadings
    shifts = np.stack(
        [_shift(n_features, _TISSUE_SHARE, _TISSUE_SHIFT, rng) for _ in range(_N_TISSUES)]
    )
    x += shifts[tissue]
    x[y == 1] += _shift(n_features, _OWN_SHARE, _OWN_SHIFT, rng)
    x += rng.normal(0.0, _NOISE, x.shape)
    names = tuple(f"gene {number}" for number in range(1, n_features + 1))
    return Dataset("omentum_surrogate", x, y, names, f"generated, seed {seed}")


def _shift(
    n_features: int, share: float, spread: float, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return a shift per gene, mostly 0, at least one not."""
    shift = np.zeros(n_features)
    moved = rng.permutation(n_features)[: max(1, round(share * n_features))]
    shift[moved] = rng.normal(0.0, spread, len(moved))
    return shift
