"""The heads that a client fits for a pool: on embeddings, on rows, and on discriminants of rows."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.personal._choosing import apart
from fedneighbors.methods.knnper.personal._kernel_heads import KernelHead, kernel_held_out
from fedneighbors.methods.knnper.personal._ridge import Head, head_held_out

HEADS = ("ridge head", "kernel head", "discriminant head")
"""In the order in which they speak."""


@dataclass(frozen=True, eq=False)
class Heads:
    """One head for each view of a row.

    Parameters
    ----------
    ridge : Head
        On embeddings.
    kernel : KernelHead
        On the rows themselves; on embeddings where no rows stand beside them.
    discriminant : KernelHead or None
        On discriminants of rows; None where there are none.
    settings : MemorySettings
        What stands beside embeddings.
    """

    ridge: Head
    kernel: KernelHead
    discriminant: KernelHead | None
    settings: MemorySettings

    @classmethod
    def fitted(cls, keys: Floats, targets: Floats, settings: MemorySettings) -> Self:
        """Return the heads of these rows, of which there is one at least.

        Parameters
        ----------
        keys : float64 array of shape (n_rows, n_dimensions + n_beside)
            Embeddings, with what stands beside them.
        targets : float64 array of shape (n_rows, n_outputs)
            What they are to give.
        settings : MemorySettings
            What stands beside embeddings.
        """
        embeddings, rows, seen = _views(keys, settings)
        discriminant = None if seen is None else KernelHead.fitted(seen, targets)
        ridge, kernel = Head.fitted(embeddings, targets), KernelHead.fitted(rows, targets)
        return cls(ridge, kernel, discriminant, settings)

    def said(self, keys: Floats) -> list[Floats]:
        """Return what each head gives, shape (n_rows, n_outputs); 0 from one that is not there."""
        embeddings, rows, seen = _views(keys, self.settings)
        first = self.ridge.said(embeddings)
        last = np.zeros_like(first)
        if self.discriminant is not None and seen is not None:
            last = self.discriminant.said(seen)
        return [first, self.kernel.said(rows), last]


def heads_held_out(keys: Floats, targets: Floats, settings: MemorySettings) -> list[Floats]:
    """Return what each head gives for rows that it has not seen.

    Parameters
    ----------
    keys, targets, settings
        As :meth:`Heads.fitted` takes them.
    """
    embeddings, rows, seen = _views(keys, settings)
    last = np.zeros_like(targets) if seen is None else kernel_held_out(seen, targets)
    return [head_held_out(embeddings, targets), kernel_held_out(rows, targets), last]


def _views(keys: Floats, settings: MemorySettings) -> tuple[Floats, Floats, Floats | None]:
    """Return embeddings, rows, and discriminants of rows; embeddings where there are no rows."""
    embeddings, beside = apart(keys, settings.n_beside)
    if not settings.n_discriminants:
        return embeddings, beside, None
    return embeddings, *apart(beside, settings.n_discriminants)
