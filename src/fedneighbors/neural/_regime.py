"""How a client trains: steps, rates and pulls, checked before anything runs."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Regime:
    """Stochastic gradient descent as a client runs it in one round.

    Parameters
    ----------
    epochs : int
        Passes over the client's rows.
    batch_size : int
        Rows of a step.
    learning_rate : float
        Of a step.
    momentum : float
        Share of the last step that is kept, in [0, 1).
    weight_decay : float
        Pull of the trained weights towards zero.
    proximal : float
        Pull towards the anchor: FedProx's and Ditto's penalty is ``proximal / 2`` times the squared
        distance.
    """

    epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 5e-4
    proximal: float = 0.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"expected {name} as an integer of 1 or more, got {value!r}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"expected learning_rate above 0, got {self.learning_rate!r}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"expected momentum from 0 up to 1, got {self.momentum!r}")
        for name in ("weight_decay", "proximal"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"expected {name} of 0 or more, got {getattr(self, name)!r}")
