"""Owns `Network`: a module, where in it the embedding comes out, and which part is its head."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["Network", "State", "copied", "state_of"]

State = dict[str, Tensor]
"""Parameters and buffers of a module by name; :func:`state_of` makes it."""


def state_of(module: nn.Module) -> State:
    """Return copies of all parameters and buffers of a module."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def copied(state: Mapping[str, Tensor]) -> State:
    """Return a state that shares nothing with another."""
    return {name: tensor.detach().clone() for name, tensor in state.items()}


@dataclass(frozen=True, eq=False)
class Network:
    """A module whose weights are given from outside, so that one serves any number of clients.

    Parameters
    ----------
    module : torch.nn.Module
        Takes a batch and returns scores of shape (n_rows, n_outputs). Its own weights are where
        training begins; they are never changed.
    embedding : str
        Name of the submodule whose output is phi(x), such as ``"body"``. Of a recurrent layer its
        last hidden and cell states are put side by side.
    head : tuple of str
        Names of the submodules that turn the embedding into scores.

    Raises
    ------
    ValueError
        If the module has no submodule of such a name, or the head has no parameters.
    """

    module: nn.Module
    embedding: str
    head: tuple[str, ...] = ("head",)

    def __post_init__(self) -> None:
        named = dict(self.module.named_modules())
        for name in (self.embedding, *self.head):
            if name not in named or not name:
                have = ", ".join(sorted(filter(None, named))) or "none"
                raise ValueError(f"the model has no layer named {name!r}; its layers are: {have}")
        if not self.head_names:
            raise ValueError(f"the head {self.head} has no parameters; name the last linear layer")

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of all parameters."""
        return tuple(name for name, _ in self.module.named_parameters())

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of the parameters of the head."""
        prefixes = tuple(f"{name}." for name in self.head)
        return tuple(name for name in self.parameter_names if name.startswith(prefixes))

    @property
    def body_names(self) -> tuple[str, ...]:
        """Names of all other parameters."""
        return tuple(name for name in self.parameter_names if name not in set(self.head_names))

    @property
    def stacks(self) -> bool:
        """Whether many clients can be trained as one batched product.

        Running averages, as batch normalization keeps them, and dropout cannot.
        """
        refused = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RNNBase)
        return not any(isinstance(layer, refused) for layer in self.module.modules())

    def scores(self, state: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the module's output under a state."""
        scores: Tensor = functional_call(self.module, dict(state), (x,))
        return scores

    def seen(
        self, state: Mapping[str, Tensor], x: Tensor, *, batch_size: int = 1024
    ) -> tuple[Tensor, Tensor]:
        """Return embeddings and scores of rows, in evaluation mode.

        Parameters
        ----------
        state : mapping of str to Tensor
            Weights.
        x : Tensor of shape (n_rows, ...)
            Rows.
        batch_size : int
            Rows at a time; it changes nothing but the memory that is needed.

        Returns
        -------
        embeddings : Tensor of shape (n_rows, n_dimensions)
        scores : Tensor of shape (n_rows, n_outputs)
        """
        caught: list[Tensor] = []
        layer = self.module.get_submodule(self.embedding)
        hook = layer.register_forward_hook(lambda own, _x, out: caught.append(_flat(own, out)))
        was_training = self.module.training
        self.module.train(False)
        try:
            with torch.no_grad():
                scores = [self.scores(state, part) for part in torch.split(x, batch_size)]
        finally:
            hook.remove()
            self.module.train(was_training)
        return torch.cat(caught), torch.cat(scores)


def _flat(layer: nn.Module, output: Any) -> Tensor:
    """Return what a layer gave as one row for each input.

    Of a recurrent layer its last states: hidden, and cell where it has them, of all its layers.
    """
    if isinstance(layer, nn.RNNBase):
        states = output[1] if isinstance(output[1], tuple) else (output[1],)
        return torch.cat([state.detach().transpose(0, 1).flatten(1) for state in states], dim=1)
    if isinstance(output, Tensor):
        return output.detach().flatten(1)
    raise TypeError(f"an embedding layer gives a tensor, this one gave {type(output).__name__}")
