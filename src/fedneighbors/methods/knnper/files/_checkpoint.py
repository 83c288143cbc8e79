"""A training on disk: where it is, so that one that was killed goes on from its last round."""

import hashlib
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import ModelFileError
from fedneighbors.federation._messages import encode, message
from fedneighbors.methods.knnper.protocol import Stage
from fedneighbors.records._storage import replace_file
from fedneighbors.tabular._model_file import open_model, read_model_file, sealed_model

MAGIC = b"FNKC\x02"


@message
class StageParts:
    """The fields of a stage, and the fingerprint of what is trained."""

    fingerprint: str
    probe: npt.NDArray[np.float64]
    number: int
    weights: npt.NDArray[np.floating[Any]]
    chosen_on: npt.NDArray[np.floating[Any]]
    pool: npt.NDArray[np.float64]


@message
class Told:
    """What a fingerprint is of."""

    words: tuple[str, ...]
    arrays: tuple[npt.NDArray[Any], ...]


def fingerprint(*words: object, arrays: tuple[npt.NDArray[Any], ...] = ()) -> str:
    """Return what tells a training from others: its settings, clients and rows.

    Parameters
    ----------
    *words : objects
        Whose ``repr`` says what they are.
    arrays : tuple of arrays
        Rows, labels, owners.
    """
    return hashlib.sha256(encode(Told(tuple(map(repr, words)), arrays))).hexdigest()


class Checkpoint:
    """One file that holds the last stage of a training; a reader sees a whole one or none.

    Parameters
    ----------
    path : path
        The file.
    mark : str
        :func:`fingerprint` of the training.
    probe : float64 array, optional
        What the network gives under its first weights: code that no fingerprint sees.

    Raises
    ------
    ValueError
        If there is no folder for it.
    """

    def __init__(
        self, path: str | Path, mark: str, probe: npt.NDArray[np.float64] | None = None
    ) -> None:
        self._path, self._mark = Path(path), mark
        self._probe = np.empty(0) if probe is None else probe
        folder = self._path.absolute().parent
        if not folder.is_dir():
            raise ValueError(f"checkpoint points into {folder}, which is not a folder; create it")

    def keep(self, stage: Stage) -> None:
        """Write a stage over the one before."""
        empty = np.empty(0)
        parts = StageParts(
            fingerprint=self._mark,
            probe=self._probe,
            number=stage.number,
            weights=stage.weights,
            chosen_on=empty if stage.chosen_on is None else stage.chosen_on,
            pool=empty if stage.pool is None else stage.pool,
        )
        replace_file(self._path, sealed_model(MAGIC, parts))

    def resumed(self) -> Stage | None:
        """Return the stage on disk, or None if there is no file.

        Raises
        ------
        ModelFileError
            If the file is damaged, of another version, or of another training.
        """
        self._sweep()
        if not self._path.exists():
            return None
        raw = read_model_file(self._path)
        parts = open_model(MAGIC, raw, StageParts, source=str(self._path))
        if parts.fingerprint != self._mark or not _alike(parts.probe, self._probe):
            raise ModelFileError(
                f"{self._path} holds another training: its settings, network, clients or rows "
                "differ; give another path, or delete the file to begin anew"
            )
        return Stage(
            parts.number,
            parts.weights,
            parts.chosen_on if len(parts.chosen_on) else None,
            parts.pool if len(parts.pool) else None,
        )

    def done(self) -> None:
        """Delete the file: the training has ended."""
        self._sweep()
        self._path.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Delete what a training left that was killed while it wrote."""
        for part in self._path.absolute().parent.glob(f".{escape(self._path.name)}.*.part"):
            part.unlink(missing_ok=True)


def _alike(kept: npt.NDArray[np.float64], found: npt.NDArray[np.float64]) -> bool:
    """Return whether two probes differ by no more than other processors round."""
    return kept.shape == found.shape and np.allclose(kept, found, rtol=1e-3, atol=1e-5)
