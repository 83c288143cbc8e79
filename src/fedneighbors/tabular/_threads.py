"""One thread for torch and BLAS: sums then have one order, and small products cost less."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import scipy.linalg  # noqa: F401 - it brings a BLAS of its own, which is to be limited, too
from threadpoolctl import ThreadpoolController


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    """Return what knows the libraries that are loaded; to find them takes milliseconds."""
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let the products of NumPy and SciPy use a single thread inside the block."""
    with _controller().limit(limits=1, user_api="blas"):
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch, and the products of NumPy and SciPy, use a single thread inside the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with one_blas_thread():
            yield
    finally:
        torch.set_num_threads(before)
