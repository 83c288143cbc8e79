"""Detection of drift: a client's new rows differ from those in its memory.

If nothing has changed, rows before and after a moment have the same distribution. Given all of them
together, the later rows are then a random draw without replacement, whatever the class shares. In
the alternative hypothesis, class shares differ before and after. The likelihood ratio of the
alternative against the draw has mean 1 if nothing has changed. By Markov's inequality, it is at
least ``c`` with probability at most ``1 / c``, which bounds false alarms for every distribution of
rows.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy.special import betaln, gammaln

from fedneighbors._typing import Booleans, Floats, Integers
from fedneighbors.methods.knnper.algorithm import local_votes, nearest


def class_weights(key_labels: Integers, recent: Integers, n_classes: int) -> Floats:
    """Return weights of classes that adapt votes to current class shares [1]_.

    The more keys a class has, the more of them are among the neighbors of any row. Weighting the
    votes by the ratio of the current class share to the share among the keys corrects for this.

    Parameters
    ----------
    key_labels : int64 array of shape (n_keys,)
        Class of each key.
    recent : int64 array of shape (n_rows,)
        Classes of the rows since the change of shares.
    n_classes : int
        Number of classes. One row, divided among all classes, is added to either count.

    Returns
    -------
    float64 array of shape (n_classes,)
        Above 0.

    References
    ----------
    .. [1] Saerens, Latinne and Decaestecker, "Adjusting the Outputs of a Classifier to New a Priori
       Probabilities", Neural Computation 14, 2002, Eq 2.4.
    """
    before, after = (
        np.bincount(labels, minlength=n_classes) + 1 / n_classes for labels in (key_labels, recent)
    )
    return np.asarray((after / after.sum()) / (before / before.sum()))


def reweight(votes: Floats, weights: Floats) -> Floats:
    """Reweight vote shares by class.

    Parameters
    ----------
    votes : float64 array of shape (n_rows, n_classes)
        Rows sum to 1.
    weights : float64 array of shape (n_classes,)
        Above 0.
    """
    weighted = votes * weights
    return np.asarray(weighted / weighted.sum(axis=1, keepdims=True))


N_NEIGHBORS = 10
"""Number of neighbors in votes whose errors are counted; it does not depend on the client's k."""

MAX_FALSE_ALARM_RATE = 0.005
"""Maximum fraction of steps without a change in which a change is detected.

In each step up to ``2 * window + 1`` likelihood ratios are compared with a threshold of
``(2 * window + 1) / MAX_FALSE_ALARM_RATE``. After a detected change the bound is not exact, because
the remaining keys were selected.
"""

MAX_MISTAKEN_RATE = 0.05
"""Maximum fraction of changes of class shares in which older keys are deleted.

For a deletion, the errors of older keys must be ``1 / MAX_MISTAKEN_RATE`` times as likely under a
higher error rate.
"""


def label_evidence(before: Integers, after: Integers) -> float:
    """Compute the evidence for a change of class shares.

    The evidence is the log-likelihood ratio of separate shares against common shares, given both
    samples together. Separate shares have a Dirichlet prior in which all kinds together count as
    one row. A kind of row is a class, or it is "wrong" or "right" in :func:`error_rise_evidence`.

    Parameters
    ----------
    before, after : int64 array of shape (n_kinds,)
        Number of rows of each kind before a moment, and after it.

    Returns
    -------
    float
        Natural logarithm of the ratio, which has mean 1 if ``after`` is drawn without replacement
        from both samples together.
    """
    weight = 1 / len(before)
    total = before + after
    occurs = total > 0
    before, after, total = before[occurs], after[occurs], total[occurs]
    logs = _log_likelihoods(before, weight) + _log_likelihoods(after, weight)
    alternative = float(logs.sum() - _log_sum_over_splits(total, int(after.sum()), weight))
    return alternative - _log_draw_probability(total, after)


def _log_likelihoods(counts: Integers, weight: float) -> Floats:
    """Return each kind's term of an unordered sample's log-likelihood."""
    return np.asarray(gammaln(counts + weight) - gammaln(weight) - gammaln(counts + 1))


def _log_sum_over_splits(total: Integers, n_after: int, weight: float) -> float:
    """Return the logarithm of the summed likelihoods of all splits.

    A split has ``n_after`` rows in the second sample.
    """
    sums, log_scale = np.ones(1), 0.0  # indexed by the number of rows in the second sample
    for n in total.tolist():
        later = np.arange(min(n, n_after) + 1)
        logs = _log_likelihoods(later, weight) + _log_likelihoods(n - later, weight)
        sums = np.convolve(sums, np.exp(logs - logs.max()))[: n_after + 1]
        log_scale += logs.max() + np.log(sums.max())
        sums /= sums.max()
    return float(np.log(sums[n_after]) + log_scale)


def _log_draw_probability(total: Integers, after: Integers) -> float:
    """Return the log-probability of a sample drawn without replacement."""
    n, n_after = int(total.sum()), int(after.sum())
    logs = gammaln(total + 1) - gammaln(after + 1) - gammaln(total - after + 1)
    return float(logs.sum() - (gammaln(n + 1) - gammaln(n_after + 1) - gammaln(n - n_after + 1)))


def error_rise_evidence(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Compute the evidence for a rise of the error rate.

    ``before`` and ``after`` are (number of errors, number of rows) of the memory's votes: on its
    own rows by leave-one-out, and on later rows. The evidence is :func:`label_evidence` with
    "wrong" and "right" as kinds of rows. It is minus infinity if the error rate has not risen,
    because then there is no reason to delete keys.
    """
    (wrong, rows), (new_wrong, new_rows) = before, after
    if new_wrong * rows <= wrong * new_rows:
        return -np.inf
    return label_evidence(
        np.array([wrong, rows - wrong]), np.array([new_wrong, new_rows - new_wrong])
    )


def excess_error_evidence(before: tuple[float, float], after: tuple[int, int]) -> float:
    """Compute the evidence that the error rate has become higher.

    ``before`` and ``after`` are (number of errors, number of rows); ``before`` may be weighted. The
    evidence is the natural logarithm of the Bayes factor of an unknown rate, whose Beta prior
    counts as one row, against the rate estimated from ``before``. It is minus
    infinity if the error rate has not risen.
    """
    (wrong, rows), (new_wrong, new_rows) = before, after
    if new_wrong * rows <= wrong * new_rows:
        return -np.inf
    unknown_rate = _log_errors(new_wrong, new_rows, 0.5, 0.5)
    return unknown_rate - _log_errors(new_wrong, new_rows, 0.5 + wrong, 0.5 + rows - wrong)


def _log_errors(wrong: int, rows: int, a: float, b: float) -> float:
    """Return the log-probability of a sequence under a Beta(a, b) prior."""
    return float(betaln(a + wrong, b + rows - wrong) - betaln(a, b))


class Batch(NamedTuple):
    """Number of a batch's rows by class, and number of rows that the memory misclassified."""

    counts: tuple[int, ...]
    n_wrong: int


class Change(NamedTuple):
    """A detected change.

    The ``n_before`` oldest keys arrived before it. ``of_meaning`` is true if similar rows now have
    other labels, so that these keys are outdated. It is false if only class shares have changed.
    """

    n_before: int
    of_meaning: bool


@dataclass
class DriftDetector:
    """Detector of drift over the last batches.

    It detects changes of class shares, and changes of meaning: similar embeddings get other labels
    than before, which causes errors. New class shares cause errors as well, because the memory
    votes for formerly frequent classes. So its errors are counted again, with votes reweighted for
    the new shares. Only if there are still more than on its own rows under such shares, the keys
    are considered outdated. Keys that remain after a change of shares are tested again at each
    step.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    window : int
        Number of last batches; the beginning of each is tested as the time of a change.
    """

    n_classes: int
    window: int = 5
    batches: deque[Batch] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.batches = deque(maxlen=self.window)

    @property
    def threshold(self) -> float:
        """Return the evidence above which a change is detected, in nats."""
        return float(np.log((2 * self.window + 1) / MAX_FALSE_ALARM_RATE))

    def detect(
        self, keys: Floats, labels: Integers, n_past: int, new_keys: Floats, new_labels: Integers
    ) -> Change | None:
        """Return the change detected by new rows, if any.

        The rows are not yet in the memory. After a detected change, earlier batches are dropped.

        Parameters
        ----------
        keys : float64 array of shape (n_keys, n_dimensions)
            Keys of the memory, oldest first; the latest are those of the last batches.
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
        row_errors = _is_misclassified(keys, labels, *new, weights)  # mask of new rows
        counts = np.bincount(new_labels, minlength=self.n_classes)
        self.batches.append(Batch(tuple(counts.tolist()), int(row_errors.sum())))
        key_errors = _is_misclassified(keys, labels, keys[recent], labels[recent], weights, recent)
        change = None
        if n_past and self._outdated_evidence(n_past, keys, labels, new) > self.threshold:
            change = Change(n_past, of_meaning=True)
        else:
            evidence, n_before = self._find_change(labels[recent], key_errors, len(new_labels))
            if evidence > self.threshold:
                n_before += n_past
                outdated = self._outdated_evidence(n_before, keys, labels, new)
                change = Change(n_before, of_meaning=outdated > -np.log(MAX_MISTAKEN_RATE))
        if change is not None:
            self.batches.clear()
        return change

    def _find_change(self, labels: Integers, wrong: Booleans, n_new: int) -> tuple[float, int]:
        """Return the largest evidence for a change, and its time.

        The time is the number of recent keys that arrived before the change. ``labels`` and
        ``wrong`` (misclassified by leave-one-out) are those of the recent keys, without ``n_new``
        rows that are in the last batch only.
        """
        best, best_n_before = -np.inf, 0
        counts, errors, rows = np.zeros(self.n_classes, np.int64), 0, 0
        for batch in reversed(self.batches):
            counts, errors = counts + np.array(batch.counts), errors + batch.n_wrong
            rows += sum(batch.counts)
            n_before = len(labels) - (rows - n_new)
            if n_before < 2:
                break
            old = np.bincount(labels[:n_before], minlength=self.n_classes)
            before = (int(wrong[:n_before].sum()), n_before)
            evidence = max(label_evidence(old, counts), error_rise_evidence(before, (errors, rows)))
            if evidence > best:
                best, best_n_before = evidence, n_before
        return best, best_n_before

    def _outdated_evidence(
        self, n_before: int, keys: Floats, labels: Integers, new: tuple[Floats, Integers]
    ) -> float:
        """Return the evidence that the ``n_before`` oldest keys are outdated.

        Their votes on later rows are reweighted for the class shares of these, and errors are
        counted. The expected errors are those of the oldest keys on themselves, by leave-one-out,
        with the same weights and with each class as frequent as among the later rows. Later rows
        of classes without old keys are ignored.
        """
        old_keys, old_labels = keys[:n_before], labels[:n_before]
        after = np.concatenate([labels[n_before:], new[1]])
        has_old_class = np.isin(after, old_labels)
        if not has_old_class.any():
            return -np.inf
        old, weights = (old_keys, old_labels), class_weights(old_labels, after, self.n_classes)
        later = np.concatenate([keys[n_before:], new[0]])[has_old_class]
        row_errors = _is_misclassified(*old, later, after[has_old_class], weights)
        key_errors = _is_misclassified(*old, *old, weights, skip=np.arange(n_before))
        row_weights = class_weights(old_labels, after[has_old_class], self.n_classes)[old_labels]
        rows = float(row_weights.sum() ** 2 / (row_weights**2).sum())  # effective number of rows
        expected = rows * float(row_weights[key_errors].sum() / row_weights.sum())
        return excess_error_evidence((expected, rows), (int(row_errors.sum()), len(row_errors)))

    def restore(self, batches: Sequence[tuple[Sequence[int], int]]) -> None:
        """Set :attr:`batches`, after checks.

        Raises
        ------
        TypeError, ValueError
            If the value is invalid.
        """
        self.batches.clear()
        for counts, n_wrong in batches:
            if len(counts) != self.n_classes:
                raise ValueError(f"expected counts of {self.n_classes} classes, got {len(counts)}")
            batch = Batch(tuple(map(int, counts)), int(n_wrong))
            if min(batch.counts) < 0 or not 0 <= batch.n_wrong <= sum(batch.counts):
                raise ValueError(f"expected counts of rows and of errors among them, got {batch}")
            self.batches.append(batch)


def _is_misclassified(
    keys: Floats,
    labels: Integers,
    queries: Floats,
    truth: Integers,
    weights: Floats,
    skip: Integers | None = None,
) -> Booleans:
    """Return a mask of queries with most votes for a wrong class."""
    neighbors = nearest(keys, queries, N_NEIGHBORS, skip=skip)
    votes = reweight(local_votes(neighbors, labels, len(weights)), weights)
    return np.asarray(votes.argmax(axis=1) != truth)
