"""Drift detection: a client's new rows differ from those in its memory.

If nothing has changed, the rows before and after a moment have the same distribution: given both
together, the later rows are a random draw without replacement, whatever the class shares. The
alternative hypothesis has separate shares before and after. The likelihood ratio of the alternative
against the draw has a mean of 1 if nothing has changed. By Markov's inequality it exceeds ``c``
with probability at most ``1 / c``, which bounds false alarms for every distribution of rows.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import betaln, gammaln

from fedneighbors._typing import Floats, Integers
from fedneighbors.methods.knnper.algorithm import local_votes, nearest


def class_weights(held: Integers, now: Integers, n_classes: int) -> Floats:
    """Return vote weights that adapt keys to current class shares [1]_.

    The distribution of rows within a class does not depend on the share of the class, but the
    number of its keys among the neighbors of a row does. The ratio of the current share to the
    share among the keys corrects for this.

    Parameters
    ----------
    held : int64 array of shape (n_keys,)
        Class of each voting key.
    now : int64 array of shape (n_rows,)
        Classes of the rows since the change of shares.
    n_classes : int
        Number of classes; together they get one pseudo-row.

    Returns
    -------
    float64 array of shape (n_classes,)
        Above 0.

    References
    ----------
    .. [1] Saerens, Latinne and Decaestecker, "Adjusting the Outputs of a Classifier to New a Priori
       Probabilities", Neural Computation 14, 2002, Eq 2.4.
    """
    before, since = (
        np.bincount(labels, minlength=n_classes) + 1 / n_classes for labels in (held, now)
    )
    return np.asarray((since / since.sum()) / (before / before.sum()))


def reweight(votes: Floats, weights: Floats) -> Floats:
    """Reweight vote shares by class.

    Parameters
    ----------
    votes : float64 array of shape (n_rows, n_classes)
        Rows sum to 1.
    weights : float64 array of shape (n_classes,)
        Above 0.
    """
    weighed = votes * weights
    return np.asarray(weighed / weighed.sum(axis=1, keepdims=True))


NEIGHBORS = 10

FALSE_ALARMS = 0.005
"""Maximum fraction of steps without a change that raise a false alarm.

Each of ``2 * window + 1`` ratios must reach ``(2 * window + 1) / FALSE_ALARMS``. After a detected
change the bound is no longer exact, because the remaining keys were selected.
"""

MISTAKEN = 0.05
"""Maximum fraction of share changes that are mistaken for a change of meaning.

Errors must be ``1 / MISTAKEN`` times more likely under a separate rate.
"""


def label_evidence(before: Integers, since: Integers) -> float:
    """Compute the evidence for a change of class shares.

    The evidence is the likelihood ratio of separate shares against common shares.

    The two samples together are taken as given. Separate shares have a Dirichlet prior in which all
    kinds together count as one row.

    Parameters
    ----------
    before, since : int64 array of shape (n_kinds,)
        Rows of each kind before a moment, and after it.

    Returns
    -------
    float
        Natural logarithm of the ratio. The ratio has mean 1 if ``since`` is drawn without
        replacement from both.
    """
    weight = 1 / len(before)
    together = before + since
    held = together > 0
    logs = _log_kinds(before[held], weight) + _log_kinds(since[held], weight)
    n, n_since = int(together.sum()), int(since.sum())
    return float(logs.sum() - _log_splits(together[held], n_since, weight)) - _log_draw(
        together[held], since[held], n, n_since
    )


def _log_kinds(counts: Integers, weight: float) -> Floats:
    """Return each kind's log contribution to the likelihood of a sample.

    The order of the sample is ignored.
    """
    return np.asarray(gammaln(counts + weight) - gammaln(weight) - gammaln(counts + 1))


def _log_splits(together: Integers, n_since: int, weight: float) -> float:
    """Sum these contributions over all splits of the rows."""
    sums, scale = np.ones(1), 0.0  # indexed by the number of rows in the second sample
    for n in together.tolist():
        fallen = np.arange(min(n, n_since) + 1)
        part = _log_kinds(fallen, weight) + _log_kinds(n - fallen, weight)
        sums = np.convolve(sums, np.exp(part - part.max()))[: n_since + 1]
        scale += part.max() + np.log(sums.max())
        sums /= sums.max()
    return float(np.log(sums[n_since]) + scale)


def _log_draw(together: Integers, since: Integers, n: int, n_since: int) -> float:
    """Return the probability of a sample drawn without replacement."""
    ways = gammaln(together + 1) - gammaln(since + 1) - gammaln(together - since + 1)
    return float(ways.sum() - (gammaln(n + 1) - gammaln(n_since + 1) - gammaln(n - n_since + 1)))


def error_evidence(before: tuple[int, int], since: tuple[int, int]) -> float:
    """Compute the evidence for a rise of the error rate.

    The evidence is the likelihood ratio of two rates against one.

    ``before`` and ``since`` are (errors of the memory's votes, rows): on its own rows by
    leave-one-out, and on the rows since. The evidence is :func:`label_evidence` of wrong and right
    rows. It is minus infinity if the error rate has not risen, because then there is no reason to
    delete keys.
    """
    (wrong, rows), (new_wrong, new_rows) = before, since
    if new_wrong * rows <= wrong * new_rows:
        return -np.inf
    return label_evidence(
        np.array([wrong, rows - wrong]), np.array([new_wrong, new_rows - new_wrong])
    )


def error_doubt(before: tuple[float, float], since: tuple[int, int]) -> float:
    """Compute the evidence for an error rate above a given one.

    The evidence is the likelihood ratio of a higher rate against the former rate.

    The rates have a Beta prior that counts as one row. ``before`` and ``since`` are (errors, rows);
    those of ``before`` may be weighted. The result is the natural logarithm of the Bayes factor, or
    minus infinity if the error rate has not risen.
    """
    (wrong, rows), (new_wrong, new_rows) = before, since
    if new_wrong * rows <= wrong * new_rows:
        return -np.inf
    alone = _log_errors(new_wrong, new_rows, 0.5, 0.5)
    return alone - _log_errors(new_wrong, new_rows, 0.5 + wrong, 0.5 + rows - wrong)


def _log_errors(wrong: int, rows: int, a: float, b: float) -> float:
    return float(betaln(a + wrong, b + rows - wrong) - betaln(a, b))


class Batch(NamedTuple):
    """Row counts of a batch by class, and the number of wrong votes of the memory on them."""

    counts: tuple[int, ...]
    n_wrong: int


class Change(NamedTuple):
    """A detected change and its time.

    ``n_before`` of the oldest rows arrived before it. ``of_meaning`` is true if the old rows are no
    longer valid, and false if only the class shares have changed.
    """

    n_before: int
    of_meaning: bool


@dataclass
class DriftWatch:
    """Detector of drift over the last batches.

    Two kinds of change are detected: of class shares, and of errors, where the same embeddings get
    other labels. New shares cause errors as well, because the memory votes for formerly frequent
    classes. So the memory votes again with weights for the new shares. Only if it still errs more
    often than on its own rows with such shares are its rows considered wrong. Keys that remain
    after a change of shares are tested again at each step.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    window : int
        Number of last batches at whose beginnings a change is tested.
    """

    n_classes: int
    window: int = 5
    seen: deque[Batch] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.seen = deque(maxlen=self.window)

    @property
    def threshold(self) -> float:
        """Return the evidence for a change, in nats."""
        return float(np.log((2 * self.window + 1) / FALSE_ALARMS))

    def change(
        self, keys: Floats, labels: Integers, n_past: int, new_keys: Floats, new_labels: Integers
    ) -> Change | None:
        """Return the change detected in new rows, if any.

        The rows are not yet in the memory.

        After a detected change the detector starts again.

        Parameters
        ----------
        keys : float64 array of shape (n_keys, n_dimensions)
            Keys of the memory, oldest first; the last ones are those of the last batches.
        labels : int64 array of shape (n_keys,)
            Class of each key.
        n_past : int
            Number of keys from before the last change of class shares.
        new_keys, new_labels
            Keys and labels of the new rows.
        """
        if len(keys) - n_past < 2 or not len(new_keys):
            return None
        new = new_keys, new_labels
        recent = np.arange(n_past, len(keys))
        weights = class_weights(labels, labels[recent], self.n_classes)
        wrong = _votes_wrong(keys, labels, *new, weights)
        counts = np.bincount(new_labels, minlength=self.n_classes)
        self.seen.append(Batch(tuple(counts.tolist()), int(wrong.sum())))
        own = _votes_wrong(keys, labels, keys[recent], labels[recent], weights, own=recent)
        change = None
        if n_past and self._error_evidence(n_past, keys, labels, new) > self.threshold:
            change = Change(n_past, of_meaning=True)
        else:
            evidence, n_before = self._find_change(labels[recent], own, len(new_labels))
            if evidence > self.threshold:
                n_before += n_past
                doubt = self._error_evidence(n_before, keys, labels, new)
                change = Change(n_before, of_meaning=doubt > -np.log(MISTAKEN))
        if change is not None:
            self.seen.clear()
        return change

    def _find_change(
        self, labels: Integers, wrong: npt.NDArray[np.bool_], n_new: int
    ) -> tuple[float, int]:
        """Return the largest evidence over all moments and its key count.

        The count is the number of keys before the moment.
        """
        best, found = -np.inf, 0
        counts, errors, rows = np.zeros(self.n_classes, np.int64), 0, 0
        for batch in reversed(self.seen):
            counts, errors = counts + np.array(batch.counts), errors + batch.n_wrong
            rows += sum(batch.counts)
            n_before = len(labels) - (rows - n_new)
            if n_before < 2:
                break
            old = np.bincount(labels[:n_before], minlength=self.n_classes)
            before = (int(wrong[:n_before].sum()), n_before)
            evidence = max(label_evidence(old, counts), error_evidence(before, (errors, rows)))
            if evidence > best:
                best, found = evidence, n_before
        return best, found

    def _error_evidence(
        self, n_before: int, keys: Floats, labels: Integers, new: tuple[Floats, Integers]
    ) -> float:
        """Return the evidence that the oldest keys err too often.

        Errors are counted on rows that arrived since.

        Votes on the later rows are weighted for their class shares. The expected error is that of
        the old keys on themselves, by leave-one-out, with the same weights and with each class as
        frequent as it is now. Rows of classes without old keys are ignored.
        """
        old, olds = keys[:n_before], labels[:n_before]
        since = np.concatenate([labels[n_before:], new[1]])
        known = np.isin(since, olds)
        if not known.any():
            return -np.inf
        weights = class_weights(olds, since, self.n_classes)
        asked = np.concatenate([keys[n_before:], new[0]])[known]
        wrong = _votes_wrong(old, olds, asked, since[known], weights)
        own = _votes_wrong(old, olds, old, olds, weights, own=np.arange(n_before))
        often = class_weights(olds, since[known], self.n_classes)[olds]
        rows = float(often.sum() ** 2 / (often**2).sum())  # effective number of unweighted rows
        expected = rows * float(often[own].sum() / often.sum())
        return error_doubt((expected, rows), (int(wrong.sum()), len(wrong)))

    def restore(self, seen: Sequence[tuple[Sequence[int], int]]) -> None:
        """Continue from the state given by :attr:`seen`.

        Raises
        ------
        TypeError, ValueError
            If the value is invalid.
        """
        self.seen.clear()
        for counts, n_wrong in seen:
            if len(counts) != self.n_classes:
                raise ValueError(f"expected counts of {self.n_classes} classes, got {len(counts)}")
            batch = Batch(tuple(map(int, counts)), int(n_wrong))
            if min(batch.counts) < 0 or not 0 <= batch.n_wrong <= sum(batch.counts):
                raise ValueError(f"expected counts of rows and of errors among them, got {batch}")
            self.seen.append(batch)


def _votes_wrong(
    keys: Floats,
    labels: Integers,
    asked: Floats,
    truth: Integers,
    weights: Floats,
    own: Integers | None = None,
) -> npt.NDArray[np.bool_]:
    """Return the rows with most votes for a wrong class."""
    found = nearest(keys, asked, NEIGHBORS, own=own)
    votes = reweight(local_votes(found, labels, len(weights)), weights)
    return np.asarray(votes.argmax(axis=1) != truth)
