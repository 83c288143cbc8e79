"""Checkpoint files, from which an interrupted training run resumes."""

import hashlib
from dataclasses import dataclass
from glob import escape
from pathlib import Path

import numpy as np

from fedneighbors._typing import Array, Floats
from fedneighbors.errors import ModelFileError
from fedneighbors.federation._messages import encode, message
from fedneighbors.methods.knnper.protocol import Stage
from fedneighbors.records._storage import check_folder, replace_file
from fedneighbors.tabular._model_file import decode_model, encode_model, read_model_file

MAGIC = b"FNKC\x05"


@dataclass(frozen=True, eq=False)
class CheckpointContent:
    """Content of a checkpoint: fingerprint of the run, outputs of the initial network, stage."""

    fingerprint: str
    probe: Floats
    stage: Stage


@message
class FingerprintInputs:
    """Inputs of the fingerprint of a training run."""

    words: tuple[str, ...]
    arrays: tuple[Array, ...]


def compute_fingerprint(*words: object, arrays: tuple[Array, ...] = ()) -> str:
    """Return a digest of a training run's settings, clients and rows.

    Parameters
    ----------
    *words : objects
        Objects identified by their ``repr``.
    arrays : tuple of arrays
        Rows, labels, owners.
    """
    return hashlib.sha256(encode(FingerprintInputs(tuple(map(repr, words)), arrays))).hexdigest()


class Checkpoint:
    """File with the last stage of a training run, replaced atomically.

    Parameters
    ----------
    path : path
        The file.
    fingerprint : str
        Result of :func:`compute_fingerprint` for the training run.
    probe : float64 array, optional
        Outputs of the network with its initial weights for fixed rows. They detect that the code of
        the network has changed since the checkpoint was written.

    Raises
    ------
    ValueError
        If the folder of the file does not exist.
    """

    def __init__(self, path: str | Path, fingerprint: str, probe: Floats | None = None) -> None:
        check_folder(path, "checkpoint")
        self._path, self._fingerprint = Path(path), fingerprint
        self._probe = np.empty(0) if probe is None else probe

    def write(self, stage: Stage) -> None:
        """Write a stage, replacing the one in the file."""
        stored = CheckpointContent(self._fingerprint, self._probe, stage)
        replace_file(self._path, encode_model(MAGIC, stored))

    def resume(self) -> Stage | None:
        """Return the stage in the file; None if there is none.

        Raises
        ------
        ModelFileError
            If the file is damaged, of another version, or of another training run.
        """
        self._delete_temporary_files()
        if not self._path.exists():
            return None
        raw = read_model_file(self._path)
        stored = decode_model(MAGIC, raw, CheckpointContent, source=str(self._path))
        if stored.fingerprint != self._fingerprint or not _nearly_equal(stored.probe, self._probe):
            raise ModelFileError(
                f"{self._path} belongs to another training run: its settings, network, clients or "
                "rows differ; choose another path, or delete the file to start again"
            )
        return stored.stage

    def delete(self) -> None:
        """Delete the file after the training has finished."""
        self._delete_temporary_files()
        self._path.unlink(missing_ok=True)

    def _delete_temporary_files(self) -> None:
        """Delete temporary files of interrupted writes."""
        for part in self._path.absolute().parent.glob(f".{escape(self._path.name)}.*.part"):
            part.unlink(missing_ok=True)


def _nearly_equal(a: Floats, b: Floats) -> bool:
    """Return whether two probes differ by rounding only."""
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-5)
