"""Notices that the rows of a client no longer come from where its memory came from."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedneighbors.methods.knnper.algorithm import local_votes
from fedneighbors.methods.knnper.memory.neighbors import nearest
from fedneighbors.methods.knnper.pool import softened

__all__ = ["DriftWatch", "Surprise", "label_surprise", "vote_surprise"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

NEIGHBORS = 10


@dataclass(frozen=True)
class Surprise:
    """How surprised a memory is by new rows, and how surprised it would be by rows like its own.

    Parameters
    ----------
    excess : float
        Sum over the new rows of what their log-loss is above the mean, in nats.
    variance : float
        Of that sum, if the rows came from where the memory came from.
    n_rows : int
        New rows.
    """

    excess: float
    variance: float
    n_rows: int


def label_surprise(known: Integers, new: Integers, n_classes: int) -> Surprise:
    """Return how far new labels are from the shares of the known ones.

    Parameters
    ----------
    known, new : int64 array of shape (n_rows,)
        Classes in the memory, and of rows that come; at least one is known.
    n_classes : int
        Classes.
    """
    shares = (np.bincount(known, minlength=n_classes) + 1 / n_classes) / (len(known) + 1)
    losses = -np.log(shares)
    mean = float(shares @ losses)
    spread = float(shares @ losses**2) - mean**2
    # The shares themselves are known from so many rows only.
    own = spread * len(new) * (1 + len(new) / len(known))
    return Surprise(float((losses[new] - mean).sum()), own, len(new))


def vote_surprise(
    keys: Floats, labels: Integers, new_keys: Floats, new_labels: Integers, n_classes: int
) -> Surprise:
    """Return how much worse the memory votes on new rows than on its own, each left out in turn.

    Parameters
    ----------
    keys, labels
        Of the memory; at least two rows.
    new_keys, new_labels
        Of rows that come.
    n_classes : int
        Classes.
    """
    own = np.arange(len(keys))
    inside = nearest(keys, keys, NEIGHBORS, own=own)
    expected = _losses(local_votes(inside, labels, n_classes), labels)
    found = nearest(keys, new_keys, NEIGHBORS)
    losses = _losses(local_votes(found, labels, n_classes), new_labels)
    variance = float(expected.var()) * len(losses) * (1 + len(losses) / len(keys))
    return Surprise(float((losses - expected.mean()).sum()), variance, len(losses))


def _losses(votes: Floats, labels: Integers) -> Floats:
    return np.asarray(-softened(votes)[np.arange(len(labels)), labels])


@dataclass
class DriftWatch:
    """Adds up surprises over the last batches, and tells when chance does not explain them.

    Two kinds are watched: of labels, whose shares have changed, and of votes, where the same
    embeddings mean other labels. Either is a sum of many losses, so that beyond ``threshold`` of
    its deviations it says that the memory is of another time.

    Parameters
    ----------
    n_classes : int
        Classes.
    threshold : float
        Deviations.
    window : int
        Batches that are added up.
    """

    n_classes: int
    threshold: float = 4.5
    window: int = 3
    _seen: deque[tuple[Surprise, Surprise]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.window < 1 or not self.threshold > 0:
            raise ValueError(
                f"expected a window of 1 or more and a threshold above 0, got {self.window} and "
                f"{self.threshold}"
            )
        self._seen = deque(maxlen=self.window)

    def notices(
        self, keys: Floats, labels: Integers, new_keys: Floats, new_labels: Integers
    ) -> bool:
        """Return whether the memory is out of date, seeing rows before they enter it.

        After it has said so it begins anew.
        """
        if len(keys) < 2 or not len(new_keys):
            return False
        self._seen.append(
            (
                label_surprise(labels, new_labels, self.n_classes),
                vote_surprise(keys, labels, new_keys, new_labels, self.n_classes),
            )
        )
        if len(self._seen) < self.window:
            return False
        drifted = any(self._deviations(kind) > self.threshold for kind in (0, 1))
        if drifted:
            self._seen.clear()
        return drifted

    @property
    def n_recent(self) -> int:
        """Rows that the last batches had."""
        return sum(labels.n_rows for labels, _ in self._seen)

    def _deviations(self, kind: int) -> float:
        excess = sum(batch[kind].excess for batch in self._seen)
        # A twentieth of a nat a row squared: where all losses are alike, rounding is no drift.
        spread = sum(batch[kind].variance + batch[kind].n_rows / 400 for batch in self._seen)
        return float(excess / np.sqrt(spread))
