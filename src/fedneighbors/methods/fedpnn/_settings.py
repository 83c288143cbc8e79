"""What the coordinator of a FedPNN training is told, checked before any party is asked."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

from fedneighbors.tabular._schema import Label

_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "normalize": ("quantile", "minmax", None),
    "frame": ("global", "local"),
    "metric": ("supervised", None),
    "activation": ("gaussian", "logistic", "cauchy"),
}
_LEFT_OPEN: Mapping[str, tuple[Any, ...]] = {
    "client_threshold": (None,),
    "server_threshold": (None,),
    "sigma": ("loo",),
}


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


@dataclass(frozen=True)
class FedPNNSettings:
    """What the coordinator is told.

    Parameters
    ----------
    client_threshold : float or None
        Dthr of the parties; None lets each choose, see :func:`~.releases.chosen_threshold`.
    server_threshold : float or None
        Dthr of the meta-clustering; None keeps every center.
    normalize : {"quantile", "minmax"} or None
        The frame.
    frame : {"global", "local"}
        Whether constants are agreed on in an exchange before, or each party uses its own.
    classwise : bool
        Cluster each class by itself.
    metric : {"supervised"} or None
        Whether moments are summed in an exchange before.
    min_count : int
        Records that a center or a constant stands for at least.
    sigma : "loo" or float
        Smoothing; ``"loo"`` takes the one of least leave-one-out loss over all parties.
    activation : str
        Kernel of the network.
    factor : float
        Of the threshold, up to which a ball is stretched.
    ridge, boost : float
        Of the metric, see :func:`~.metric.supervised_metric`.
    means : bool
        Parties send the means of their clusters' records, not where the centers came to lie.
    n_knots : int
        Groups of a column's values.
    classes : tuple of labels
        Labels to reserve beside those that the parties announce; a party announces those of which
        it has ``min_count`` rows.
    n_features_to_select : int or None
        Columns to keep, those of the largest t; None keeps all, without an exchange.
    """

    client_threshold: float | None = None
    server_threshold: float | None = None
    normalize: Literal["quantile", "minmax"] | None = "quantile"
    frame: Literal["global", "local"] = "global"
    classwise: bool = True
    metric: Literal["supervised"] | None = "supervised"
    min_count: int = 5
    sigma: float | Literal["loo"] = "loo"
    activation: str = "gaussian"
    factor: float = 2.0
    ridge: float = 0.03
    boost: float = 3.0
    n_knots: int = 100
    means: bool = True
    classes: tuple[Label, ...] = ()
    n_features_to_select: int | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"expected {name} among {choices}, got {getattr(self, name)!r}")
        for name in ("client_threshold", "server_threshold", "sigma"):
            value = getattr(self, name)
            if value not in _LEFT_OPEN[name] and not (_is_number(value) and 0 < value < math.inf):
                raise ValueError(
                    f"expected {name} above 0 or {_LEFT_OPEN[name][0]!r}, got {value!r}"
                )
        for name in ("factor", "ridge", "boost"):
            if not (_is_number(getattr(self, name)) and 0 < getattr(self, name) < math.inf):
                raise ValueError(f"expected {name} above 0, got {getattr(self, name)!r}")
        for name in ("client_threshold", "server_threshold"):
            value = getattr(self, name)
            if value is not None and not self.factor * value < math.inf:
                raise ValueError(f"expected factor * {name} to be finite, got {value!r}; lower it")
        for name in ("min_count", "n_knots", "n_features_to_select"):
            value = getattr(self, name)
            if name == "n_features_to_select" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise ValueError(f"expected {name} as an integer of 1 or more, got {value!r}")
        if self.metric is not None and (self.frame == "local" or self.normalize is None):
            raise ValueError(
                "moments can be summed in a frame that all agree on only: use frame='global' and a "
                "normalize, or metric=None"
            )

    @property
    def kind(self) -> str:
        """The frame as its file names it."""
        return self.normalize or "none"
