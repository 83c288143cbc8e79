"""The public seed of a federation, from what scikit-learn calls ``random_state``."""

import numpy as np
from sklearn.utils import check_random_state

__all__ = ["public_seed"]


def public_seed(random_state: int | np.random.RandomState | None) -> int:
    """Return the seed that a ``random_state`` stands for.

    Raises
    ------
    ValueError
        If an integer is negative or has more than 63 bits.
    """
    if isinstance(random_state, int | np.integer):
        if not 0 <= random_state < 2**63:
            raise ValueError(f"expected random_state in [0, 2**63), got {random_state}")
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
