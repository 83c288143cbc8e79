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
_ID_COLUMN = "id_ref"  # number of the sample, not a feature
_LEVEL_MEAN, _LEVEL_DEVIATION = 7.0, 2.0  # mean and deviation of gene levels
_N_PATHWAYS, _PATHWAY_DEVIATION = 40, 0.12  # 40 x .12^2: over a third of a gene's variance
_NOISE_DEVIATION = 1.0
_TISSUE_FRACTION, _TISSUE_DEVIATION = 0.02, 1.5
_POSITIVE_FRACTION, _POSITIVE_DEVIATION = 0.003, 0.8


def load_omentum() -> Dataset:
    """Load OVA Omentum from its file, or generate a surrogate.

    The file is OpenML's set 1139, ``OVA_Omentum.arff`` or ``OVA_Omentum.arff.gz`` (upper or lower
    case), in the subfolder ``fedpnn/`` of the folder in the environment variable
    ``FEDNEIGHBORS_DATA``. Nothing is downloaded. The ``name`` of the result is ``"OVA Omentum"`` or
    ``"omentum_surrogate"``.

    Raises
    ------
    DataError
        If the file is damaged, or is another data set.
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
        The last nominal column contains the labels ``Omentum`` and ``Other``. Other nominal
        columns and the column ``ID_REF``, the number of the sample, are not used.

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
    names = [n for n in table.names if n not in nominal and n.lower() != _ID_COLUMN]
    if not names:
        raise DataError(f"{path} has no numeric column; expected OpenML's set OVA_Omentum")
    x = np.column_stack([np.asarray(table.columns[name], np.float64) for name in names])
    y = np.array([str(word).lower() == "omentum" for word in words], np.int64)
    return Dataset("OVA Omentum", x, y, tuple(names), str(path))


def omentum_surrogate(*, n_features: int = OMENTUM_FEATURES, seed: int = 0) -> Dataset:
    """Generate rows with the shape of OVA Omentum.

    There are 1,545 rows, 77 of them positive, in random order. The logarithm of a gene is the sum
    of a level N(7, 2^2), of 40 pathways common to all rows (loadings N(0, .12^2), activities
    N(0, 1)), and of noise N(0, 1). Negative rows come from eight tissues of nearly equal size; each
    tissue shifts 2 % of the genes, drawn at random, by N(0, 1.5^2). Positive rows have the shifts
    of the first tissue, since tumors of the omentum mostly come from one other organ, and
    additional shifts N(0, .8^2) of .3 % of the genes.

    The surrogate has the numbers of rows, genes and positive rows of the real data set, and as
    there most genes carry no information. Scores on it say nothing about real tissues.

    Parameters
    ----------
    n_features : int
        Number of genes.
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
    levels = rng.normal(_LEVEL_MEAN, _LEVEL_DEVIATION, n_features)
    loadings = rng.normal(0.0, _PATHWAY_DEVIATION, (_N_PATHWAYS, n_features))
    x = levels + rng.normal(size=(_N_ROWS, _N_PATHWAYS)) @ loadings
    shifts = np.stack(
        [
            _draw_shift(n_features, _TISSUE_FRACTION, _TISSUE_DEVIATION, rng)
            for _ in range(_N_TISSUES)
        ]
    )
    x += shifts[tissue]
    x[y == 1] += _draw_shift(n_features, _POSITIVE_FRACTION, _POSITIVE_DEVIATION, rng)
    x += rng.normal(0.0, _NOISE_DEVIATION, x.shape)
    names = tuple(f"gene {number}" for number in range(1, n_features + 1))
    return Dataset("omentum_surrogate", x, y, names, f"generated, seed {seed}")


def _draw_shift(
    n_features: int, fraction: float, deviation: float, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Draw a shift per gene, nonzero for a fraction of them."""
    shift = np.zeros(n_features)
    shifted = rng.permutation(n_features)[: max(1, round(fraction * n_features))]
    shift[shifted] = rng.normal(0.0, deviation, len(shifted))
    return shift
