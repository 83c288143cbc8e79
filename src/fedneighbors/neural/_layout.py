"""States as one vector each, in which they travel and are averaged."""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedneighbors.neural._network import Network, State, state_of

Vector = npt.NDArray[np.floating[Any]]


class Layout:
    """Where each weight of a network stands in its vector.

    Whole numbers, such as a count of batches, are no weights and stay as the module has them.

    Parameters
    ----------
    network : Network
        Whose weights.

    Attributes
    ----------
    names : tuple of str
        Parameters and floating-point buffers, in the module's order.
    dtype : torch.dtype
        Of the weights.
    digest : str
        The same for networks of the same names, shapes and types.
    n_tokens : int or None
        As the network has it.
    reads_tokens : bool
        As the network has it.
    """

    def __init__(self, network: Network) -> None:
        self._whole = state_of(network.module)
        self.n_tokens, self.reads_tokens = network.n_tokens, network.reads_tokens
        floats = {k: t for k, t in self._whole.items() if t.is_floating_point()}
        self.names = tuple(floats)
        self._shapes = tuple(tuple(tensor.shape) for tensor in floats.values())
        self._sizes = [tensor.numel() for tensor in floats.values()]
        self.dtype = next(iter(floats.values())).dtype
        if any(tensor.dtype != self.dtype for tensor in floats.values()):
            raise ValueError("expected a model whose weights are all of one type")
        if self.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"expected a model whose weights are of 32 or 64 bits, got {self.dtype}; call its "
                "method float()"
            )
        words = repr((self.names, self._shapes, str(self.dtype)))
        self.digest = hashlib.sha256(words.encode()).hexdigest()

    @property
    def n_weights(self) -> int:
        """Length of the vector."""
        return sum(self._sizes)

    @property
    def initial(self) -> Vector:
        """The module's own weights."""
        return self.vector(self._whole)

    def vector(self, state: State) -> Vector:
        """Return a state as a vector of its type."""
        parts = [state[name].detach().reshape(-1) for name in self.names]
        vector: Vector = torch.cat(parts).cpu().numpy().copy()
        return vector

    def state(self, vector: Vector) -> State:
        """Return the state that a vector stands for.

        Raises
        ------
        ValueError
            If the vector is of another network.
        """
        if vector.shape != (self.n_weights,):
            raise ValueError(
                f"expected {self.n_weights} weights, got an array of shape {vector.shape}; it is "
                "of another network"
            )
        parts = torch.split(torch.from_numpy(np.array(vector)).to(self.dtype), self._sizes)
        named = zip(self.names, parts, self._shapes, strict=True)
        given = {name: part.reshape(shape).clone() for name, part, shape in named}
        return {**{k: t.clone() for k, t in self._whole.items()}, **given}
