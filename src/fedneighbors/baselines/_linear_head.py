"""Networks with a head of one linear layer: computed heads, embeddings, and a loss on these."""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from fedneighbors._typing import Floats
from fedneighbors.baselines._dynamic_clients import Vector
from fedneighbors.neural._network import Device, Network
from fedneighbors.neural._trainer import cross_entropy_of_scores


class LinearHead:
    """Head of a network, which is one linear layer that returns the scores.

    Parameters
    ----------
    network : Network
        The network.

    Attributes
    ----------
    shape : tuple of int
        Numbers of classes and of dimensions.

    Raises
    ------
    ValueError
        If the head has several layers or another layer, or no bias.
    """

    def __init__(self, network: Network) -> None:
        self._network, self._name = network, network.head[0]
        layer = network.module.get_submodule(self._name)
        if len(network.head) > 1 or not isinstance(layer, nn.Linear) or layer.bias is None:
            raise ValueError(
                "expected a network whose head is one linear layer with a bias that returns the "
                f"scores, got the head {network.head}; name the last linear layer as head"
            )
        self.shape = layer.out_features, layer.in_features

    def replace(self, weights: Vector, coefficients: Floats, intercepts: Floats) -> Vector:
        """Return the network's weights with another head."""
        state = self._network.state(weights)
        for part, values in (("weight", coefficients), ("bias", intercepts)):
            state[f"{self._name}.{part}"] = torch.from_numpy(values).to(self._network.dtype)
        return self._network.vector(state)

    def read(self, weights: Vector) -> tuple[Floats, Floats]:
        """Return the coefficients and intercepts."""
        state = self._network.state(weights)
        coefficients, intercepts = (
            state[f"{self._name}.{part}"].numpy().astype(np.float64) for part in ("weight", "bias")
        )
        return coefficients, intercepts

    def embed(self, clients: Iterable[tuple[Vector, Tensor]], *, device: Device) -> list[Floats]:
        """Return the inputs of the head for clients' networks and rows."""
        states = ((self._network.state(weights), x) for weights, x in clients)
        inputs = self._network.before_head(states, device=device)
        if inputs is None:
            raise ValueError(
                "expected a network whose head returns the scores; name its last layer"
            )
        return [points.cpu().numpy().astype(np.float64) for points in inputs]


class PrototypeLoss:
    """Cross-entropy plus the mean squared difference of embeddings from means of their classes.

    Parameters
    ----------
    means : float64 array of shape (n_classes, n_dimensions)
        Mean embedding of each class.
    strengths : float64 array of shape (n_classes,)
        Weight of the second term for rows of each class.
    """

    def __init__(self, means: Floats, strengths: Floats) -> None:
        self._means, self._strengths = torch.from_numpy(means), torch.from_numpy(strengths)

    def __call__(
        self, network: Network, state: Mapping[str, Tensor], x: Tensor, y: Tensor, weights: Tensor
    ) -> Tensor:
        """Return the sum of weighted losses of a batch."""
        points, scores = network.head_input(state, x)
        means, strengths = (part.to(scores)[y] for part in (self._means, self._strengths))
        squares = ((points - means) ** 2).mean(dim=-1)
        return cross_entropy_of_scores(scores, y, weights) + (strengths * squares * weights).sum()
