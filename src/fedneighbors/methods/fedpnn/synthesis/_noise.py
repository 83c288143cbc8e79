"""What a generator starts from: noise of one or of two normal distributions."""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Noise = Literal["normal", "mixture", "concat"]
NOISES: tuple[str, ...] = get_args(Noise)

_SHIFT = np.float32(0.2)
_SPREAD = np.float32(2.0**0.5)  # the 2 of N(0.2, 2) is the variance


def draw_noise(
    noise: Noise, n_entries: int, n_rows: int, rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Noise for a batch, a column for each row that will be generated.

    Parameters
    ----------
    noise : {"normal", "mixture", "concat"}
        ``"normal"``: every entry is N(0, 1). ``"mixture"``: a fair coin decides for each row
        whether all its entries are N(0, 1) or N(0.2, 2). ``"concat"``: the first half of the
        entries is N(0, 1), the second N(0.2, 2).
    n_entries, n_rows : int
        Size of a noise vector and of the batch.
    rng : numpy.random.Generator
        Source of the noise.

    Returns
    -------
    float32 array of shape (n_entries, n_rows)

    References
    ----------
    .. [1] FedPNN, section 4.1, step a: the modified CTGAN draws from N(0, 1) and N(0.2, 2).
    """
    drawn = rng.standard_normal((n_entries, n_rows), dtype=np.float32)
    if noise == "mixture":
        second = np.flatnonzero(rng.random(n_rows) < 0.5)
        drawn[:, second] = drawn[:, second] * _SPREAD + _SHIFT
    elif noise == "concat":
        half = n_entries // 2
        drawn[half:] = drawn[half:] * _SPREAD + _SHIFT
    return drawn
