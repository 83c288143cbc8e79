"""Checkpoints of a training, from which an interrupted training resumes."""

import hashlib
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import ModelFileError
from fedneighbors.federation._messages import encode, message
from fedneighbors.methods.knnper.protocol import Stage
from fedneighbors.records._storage import check_folder, replace_file
from fedneighbors.tabular._model_file import open_model, read_model_file, seal_model

MAGIC = b"FNKC\x03"


@dataclass(frozen=True, eq=False)
class Kept:
    """A training stage with fingerprints of the training and of its network."""

    fingerprint: str
    probe: npt.NDArray[np.float64]
    stage: Stage


@message
class FingerprintInputs:
    """Inputs of a training's fingerprint."""

    words: tuple[str, ...]
    arrays: tuple[npt.NDArray[Any], ...]


def fingerprint(*words: object, arrays: tuple[npt.NDArray[Any], ...] = ()) -> str:
    """Return a digest of a training's settings, clients and rows.

    Parameters
    ----------
    *words : objects
        Objects identified by their ``repr``.
    arrays : tuple of arrays
        Rows, labels, owners.
    """
    return hashlib.sha256(encode(FingerprintInputs(tuple(map(repr, words)), arrays))).hexdigest()


class Checkpoint:
    """File of the last stage of a training, replaced atomically.

    Parameters
    ----------
    path : path
        The file.
    mark : str
        :func:`fingerprint` of the training.
    probe : float64 array, optional
        Outputs of the network with its initial weights, which identify its code.

    Raises
    ------
    ValueError
        If its folder does not exist.
    """

    def __init__(
        self, path: str | Path, mark: str, probe: npt.NDArray[np.float64] | None = None
    ) -> None:
        check_folder(path, "checkpoint")
        self._path, self._mark = Path(path), mark
        self._probe = np.empty(0) if probe is None else probe

    def keep(self, stage: Stage) -> None:
        """Write a stage over the previous one."""
        kept = Kept(self._mark, self._probe, stage)
        replace_file(self._path, seal_model(MAGIC, kept))

    def resume(self) -> Stage | None:
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
        kept = open_model(MAGIC, raw, Kept, source=str(self._path))
        if kept.fingerprint != self._mark or not _alike(kept.probe, self._probe):
            raise ModelFileError(
                f"{self._path} belongs to another training: its settings, network, clients or rows "
                "differ; choose another path, or delete the file to start again"
            )
        return kept.stage

    def done(self) -> None:
        """Delete the file after the training has finished."""
        self._sweep()
        self._path.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Delete temporary files of interrupted writes."""
        for part in self._path.absolute().parent.glob(f".{escape(self._path.name)}.*.part"):
            part.unlink(missing_ok=True)


def _alike(kept: npt.NDArray[np.float64], found: npt.NDArray[np.float64]) -> bool:
    """Return whether two probes differ by rounding only."""
    return kept.shape == found.shape and np.allclose(kept, found, rtol=1e-3, atol=1e-5)
