"""The baseline SBFC of the FlyNN paper (appendix D.5): FlyNN's filters over a dense SimHash."""

import math
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Booleans, Floats, Integers
from fedneighbors.tabular._ownership import check_labels, plain_targets, public_seed, validate_rows

# Default number of bits per feature, and the limits of their total.
BITS_PER_FEATURE = 16
MIN_BITS = 256
MAX_BITS = 8192

Bits = Booleans
Counts = Integers


def hash_signs(x: Array, n_bits: int, seed: int) -> Bits:
    """Compute each row's SimHash: the signs of ``n_bits`` random projections.

    Parameters
    ----------
    x : array of shape (n_rows, n_features)
        Finite numbers.
    n_bits : int
        Number of projections (m), each with independent standard normal weights.
    seed : int
        Seed of the weights. The first bits of a row do not depend on ``n_bits``.

    Returns
    -------
    bool array of shape (n_rows, n_bits)

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0], [-1.0, -2.0]])
    >>> bits = hash_signs(x, 8, seed=0)
    >>> bool((bits[0] == ~bits[1]).all())
    True
    """
    directions = np.random.default_rng(seed).standard_normal((n_bits, x.shape[1]))
    return np.asarray(np.asarray(x, np.float64) @ directions.T > 0)


def count_bits(bits: Bits, labels: Integers, n_classes: int) -> Counts:
    """Count rows by class and set bit, shape (n_classes, n_bits)."""
    return np.stack([bits[labels == c].sum(axis=0, dtype=np.int64) for c in range(n_classes)])


def derive_decay(n_rows: int, n_classes: int, *, kappa: float = 1.0) -> float:
    """Return the decay for bits set for half of the rows.

    It is gamma = exp(-2 kappa L / n): a bit is set for about n / 2 rows, n / (2 L) of each class,
    so a bit of mean load has the weight exp(-kappa). With a fixed gamma such as 0.5, weights would
    vanish after a few dozen rows of a class.
    """
    return math.exp(-2 * kappa * n_classes / max(n_rows, 1))


class SimHashBloomClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """FlyNN's decision rule over a dense hash of random hyperplanes.

    The baseline SBFC of [1]_. About half of the bits are set for every row, while the default fly
    hash sets less than one in a hundred. The filters of all classes soon contain every bit, and
    only the frequency of bits separates classes. The novelty of a row for class l is the sum of
    gamma ** count over the bits set for the row, as for FlyNN. It is not divided by the number of
    set bits, which is the same for every class and would not change a prediction. Unset bits do not
    count, as in Algorithm 1.

    Parameters
    ----------
    n_bits : int, optional
        Number of projections (m). None: 16 per feature, at least 256 and at most 8192.
    decay : float, optional
        Factor per counted row (gamma), in [0, 1]. By default, a bit of mean load has the weight
        exp(-1), see :func:`derive_decay`.
    random_state : int, RandomState or None
        Seed of the projections.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending.
    counts_ : int64 array of shape (n_classes, n_bits)
        Number of rows of each class with each bit set.
    n_bits_, decay_ : int, float
        Values of ``n_bits`` and ``decay`` in use.

    Notes
    -----
    The sign of a projection depends on the origin: centre the features first.

    References
    ----------
    .. [1] Ram and Sinha, "Federated Nearest Neighbor Classification with a Colony of
       Fruit-Flies", AAAI 2022, appendix D.5; SimHash: Charikar, "Similarity Estimation
       Techniques from Rounding Algorithms", STOC 2002.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_wine(return_X_y=True)
    >>> bool(SimHashBloomClassifier().fit(scale(X), y).score(scale(X), y) > 0.9)
    True
    """

    def __init__(
        self,
        n_bits: int | None = None,
        decay: float | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.n_bits = n_bits
        self.decay = decay
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Count the bits of each class.

        Parameters
        ----------
        X : array of shape (n_rows, n_features)
            Finite numbers.
        y : array of shape (n_rows,)
            Labels.

        Raises
        ------
        ValueError
            If ``n_bits`` is below 1 or ``decay`` outside [0, 1].
        """
        x, y = validate_rows(self, X, plain_targets(y), dtype=np.float64)
        check_labels(y)
        self.n_bits_ = self._choose_bits(x.shape[1])
        self.classes_, labels = np.unique(y, return_inverse=True)
        self.decay_ = self._choose_decay(len(y), len(self.classes_))
        self._seed = public_seed(self.random_state)
        bits = hash_signs(x, self.n_bits_, self._seed)
        self.counts_ = count_bits(bits, labels.astype(np.int64), len(self.classes_))
        return self

    def predict(self, X: Any) -> Array:
        """Predict the class of least novelty; ties go to the lower class."""
        novelty = self._novelty(X)
        return np.asarray(self.classes_[np.argmin(novelty, axis=1)])

    def decision_function(self, X: Any) -> Floats:
        """Return the negative novelty of each class, shape (n_rows, n_classes).

        For two classes, return the first novelty minus the second, shape (n_rows,).
        """
        novelty = self._novelty(X)
        return novelty[:, 0] - novelty[:, 1] if novelty.shape[1] == 2 else -novelty

    def _novelty(self, X: Any) -> Floats:
        check_is_fitted(self)
        x = validate_rows(self, X, dtype=np.float64, reset=False)
        bits = hash_signs(x, self.n_bits_, self._seed)
        return np.asarray(bits.astype(np.float64) @ np.power(self.decay_, self.counts_).T)

    def _choose_bits(self, n_features: int) -> int:
        if self.n_bits is None:
            return min(max(BITS_PER_FEATURE * n_features, MIN_BITS), MAX_BITS)
        if self.n_bits < 1:
            raise ValueError(f"expected n_bits of at least 1, got {self.n_bits!r}")
        return int(self.n_bits)

    def _choose_decay(self, n_rows: int, n_classes: int) -> float:
        if self.decay is None:
            return derive_decay(n_rows, n_classes)
        if not 0 <= self.decay <= 1:
            raise ValueError(f"expected decay in [0, 1], got {self.decay!r}")
        return float(self.decay)
