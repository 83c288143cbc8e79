"""Where networks are trained and looked through: the processor, or a graphics card."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from fedneighbors.errors import MissingDeviceError

__all__ = ["Device", "chosen_device", "repeatable"]

Device = Literal["auto", "cpu", "cuda"]
"""What an estimator takes as ``device``."""


def chosen_device(device: Device) -> torch.device:
    """Return the device that a word stands for.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"}
        ``"auto"`` is the graphics card where there is one. Only on the processor do equal seeds
        promise equal bits on every machine, which is why it is the default everywhere.

    Raises
    ------
    ValueError
        If it is none of these words.
    MissingDeviceError
        If ``"cuda"`` is asked for and torch sees no such card.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"expected device 'auto', 'cpu' or 'cuda', got {device!r}")
    there = device != "cpu" and torch.cuda.is_available()
    if device == "cuda" and not there:
        raise MissingDeviceError(
            f"device='cuda' was asked for, but torch {torch.__version__} sees no such card; "
            "install a build of torch for it, or take device='cpu' or 'auto'"
        )
    return torch.device("cuda" if there else "cpu")


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Let convolutions on a card be whole float32 and of one order; a processor's always are."""
    if device.type == "cpu":
        yield
        return
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    ):
        yield
