"""Comparison of two methods over data sets, and accuracy summaries over clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats


@dataclass(frozen=True)
class PairedComparison:
    """Comparison of a method with a baseline over the same data sets.

    Parameters
    ----------
    n_pairs : int
        Number of data sets.
    wins, ties, losses : int
        Numbers of data sets on which the method is better, equal or worse.
    median_improvement : float
        Median of the method's improvement over the baseline; positive if the method is better.
    t_test_p : float
        Two-sided p-value of the paired t-test.
    wilcoxon_p : float
        Two-sided p-value of the Wilcoxon signed-rank test, without the ties.
    """

    n_pairs: int
    wins: int
    ties: int
    losses: int
    median_improvement: float
    t_test_p: float
    wilcoxon_p: float


def compare_paired(
    method: npt.ArrayLike, baseline: npt.ArrayLike, *, higher_is_better: bool = True
) -> PairedComparison:
    """Compare two methods by their scores on several data sets.

    The result contains the columns of Table 2 in [1]_, which compares *normalized accuracies*: 1
    minus the accuracy relative to kNN, so that lower is better (see
    :func:`~fedneighbors.metrics.normalized_accuracy`).

    Parameters
    ----------
    method, baseline : array-like of shape (n_pairs,)
        Scores on the same data sets in the same order; at least two, finite.
    higher_is_better : bool, default=True
        False if lower scores are better, as for normalized accuracies and errors.

    Returns
    -------
    PairedComparison
        Both p-values are 1 if no pair differs; that of the t-test is 0 if all pairs differ by the
        same nonzero amount.

    Raises
    ------
    ValueError
        If the arrays differ in length, have fewer than two scores, or contain a score that is not
        finite.

    References
    ----------
    .. [1] Ram and Sinha, "Federated Nearest Neighbor Classification with a Colony of
       Fruit-Flies", AAAI 2022.

    Examples
    --------
    >>> from fedneighbors.metrics import compare_paired
    >>> result = compare_paired([0.9, 0.8, 0.75, 0.5], [0.8, 0.8, 0.5, 0.6])
    >>> result.wins, result.ties, result.losses
    (2, 1, 1)
    """
    first, second = np.asarray(method, dtype=float), np.asarray(baseline, dtype=float)
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(
            f"method has shape {first.shape} and baseline {second.shape}; "
            "expected one score of each per data set"
        )
    if len(first) < 2:
        raise ValueError(f"a comparison needs at least two data sets, got {len(first)}")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("scores must be finite; omit data sets without a score")
    improvement = first - second if higher_is_better else second - first
    t_test_p, wilcoxon_p = _p_values(improvement)
    return PairedComparison(
        n_pairs=len(improvement),
        wins=int((improvement > 0).sum()),
        ties=int((improvement == 0).sum()),
        losses=int((improvement < 0).sum()),
        median_improvement=float(np.median(improvement)),
        t_test_p=t_test_p,
        wilcoxon_p=wilcoxon_p,
    )


def _p_values(improvement: Floats) -> tuple[float, float]:
    if not improvement.any():
        return 1.0, 1.0
    from scipy import stats

    constant = (improvement == improvement[0]).all()
    t_test_p = 0.0 if constant else float(stats.ttest_1samp(improvement, 0.0).pvalue)
    signed_rank = stats.wilcoxon(improvement, zero_method="wilcox", alternative="two-sided")
    return t_test_p, float(signed_rank.pvalue)


def average_accuracy(right: Mapping[str, tuple[int, int]], names: Sequence[str]) -> float:
    """Return the named clients' average accuracy, weighted by their numbers of rows.

    Parameters
    ----------
    right : mapping of str to (int, int)
        Numbers of correctly predicted rows and of all rows, by client.
    names : sequence of str
        Clients to include.

    Returns
    -------
    float
        Fraction of correctly predicted rows; NaN if the clients have no rows.
    """
    counts = [right[name] for name in names]
    n_rows = sum(n for _, n in counts)
    return sum(n_right for n_right, _ in counts) / n_rows if n_rows else float("nan")


def bottom_decile(right: Mapping[str, tuple[int, int]], names: Sequence[str]) -> float:
    """Return the bottom decile of the clients' accuracies.

    Of M clients this is the ``max(M // 10, 1)``-th lowest accuracy [1]_.

    Parameters
    ----------
    right, names
        As for :func:`average_accuracy`. Clients without rows are excluded.

    Returns
    -------
    float
        NaN if no client has rows.

    References
    ----------
    .. [1] Marfoq et al., "Personalized Federated Learning through Local Memorization", ICML 2022,
       section 6.
    """
    accuracies = sorted(right[name][0] / right[name][1] for name in names if right[name][1])
    return accuracies[max(len(accuracies) // 10 - 1, 0)] if accuracies else float("nan")
