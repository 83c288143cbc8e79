"""Training of the conditional tabular GAN (WGAN-GP) in PyTorch: generator and critic.

Batches are feature-major, with one column per row of the table. The softmax over blocks of one-hot
parts can then use SIMD instructions (15 times faster than row-major, for 500 rows of 64 parts of
width 9), and packing rows for the critic is a reshape.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedneighbors._typing import Progress, Singles, silent
from fedneighbors.methods.fedpnn.synthesis._encoding import Layout
from fedneighbors.methods.fedpnn.synthesis._generation import (
    Picks,
    RowsByCategory,
    TrainedGenerator,
    TrainingSettings,
    draw_noise,
)
from fedneighbors.tabular._ownership import one_thread

_TEMPERATURE = 0.2  # temperature of the Gumbel softmax, as in CTGAN
_SLOPE = 0.2  # slope of the critic's leaky ReLU for negative inputs, as in CTGAN
_PENALTY = 10.0  # weight of the gradient penalty, as in WGAN-GP
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False)
class Dense:
    """Linear layer with weight of shape (n_out, n_in) and bias of shape (n_out,)."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def initialize(
        cls, n_in: int, n_out: int, rng: np.random.Generator, *, trains: bool
    ) -> "Dense":
        """Create a layer with uniform random weights within 1 / sqrt(n_in).

        Parameters
        ----------
        n_in, n_out : int
            Shape of the layer.
        rng : numpy.random.Generator
            Random source; the global generator of PyTorch is not used.
        trains : bool
            If True, the parameters require gradients.
        """
        bound = n_in**-0.5
        weight = rng.uniform(-bound, bound, (n_out, n_in)).astype(np.float32)
        bias = rng.uniform(-bound, bound, n_out).astype(np.float32)
        return cls(
            torch.from_numpy(weight).requires_grad_(trains),
            torch.from_numpy(bias).requires_grad_(trains),
        )

    def __call__(self, state: Tensor) -> Tensor:
        """Apply the layer to each column."""
        return torch.addmm(self.bias[:, None], self.weight, state)


class Generator:
    """Network from noise and conditional vectors to encoded rows.

    Parameters
    ----------
    n_inputs : int
        Length of a noise vector plus that of a conditional vector.
    hidden : sequence of int
        Number of units of each hidden layer. The output of each is concatenated with its input, so
        that the last layer gets all of them.
    layout : Layout
        Layout of the encoded table.
    rng : numpy.random.Generator
        Random source for the initial weights.

    References
    ----------
    .. [1] Xu et al., "Modeling Tabular Data using Conditional GAN", NeurIPS 2019, section 4.4.
    """

    def __init__(
        self, n_inputs: int, hidden: Sequence[int], layout: Layout, rng: np.random.Generator
    ) -> None:
        self.layout = layout
        self._hidden: list[tuple[Dense, torch.nn.BatchNorm1d]] = []
        for n_units in hidden:
            layer = Dense.initialize(n_inputs, n_units, rng, trains=True)
            self._hidden.append((layer, torch.nn.BatchNorm1d(n_units)))
            n_inputs += n_units
        self._output = Dense.initialize(n_inputs, layout.width, rng, trains=True)

    @torch.no_grad()
    def initialize_biases(self, frequencies: Tensor) -> None:
        """Set the output biases to the log frequencies of the categories.

        Parameters
        ----------
        frequencies : Tensor of shape (n_one_hot,)
            Relative frequency of each category of each column, positive.
        """
        self._output.bias[len(self.layout.scalars) :] = frequencies.log()

    @property
    def parameters(self) -> list[Tensor]:
        """Return all trainable parameters."""
        parameters = [self._output.weight, self._output.bias]
        for layer, norm in self._hidden:
            parameters += [layer.weight, layer.bias, norm.weight, norm.bias]
        return parameters

    def logits(self, inputs: Tensor) -> Tensor:
        """Return outputs before activation; update the running statistics.

        The result has shape (layout.width, n_rows).
        """
        state = inputs
        for layer, norm in self._hidden:
            state = torch.cat([torch.relu(norm(layer(state)[None])[0]), state])
        return self._output(state)

    def activate(self, logits: Tensor, exponential: Tensor) -> Tensor:
        """Return encoded rows: tanh for scalars, Gumbel softmax for one-hot parts.

        Parameters
        ----------
        logits : Tensor of shape (layout.width, n_rows)
            Output of :meth:`logits`.
        exponential : Tensor of shape (n_one_hot, n_rows)
            Exponential random numbers; their negative logarithm is Gumbel noise.
        """
        n_scalars, n_rows = len(self.layout.scalars), logits.shape[1]
        parts = [torch.tanh(logits[:n_scalars])]
        noisy = (logits[n_scalars:] - exponential.clamp(min=_TINY).log()) / _TEMPERATURE
        for first, count, width in self.layout.blocks:
            block = noisy[first - n_scalars : first - n_scalars + count * width]
            probabilities = torch.softmax(block.view(count, width, n_rows), dim=1)
            parts.append(probabilities.view(count * width, n_rows))
        return torch.cat(parts)

    @torch.no_grad()
    def freeze(self) -> tuple[tuple[tuple[Singles, Singles], ...], tuple[Singles, Singles]]:
        """Return the weights, with batch normalization folded into the hidden layers.

        Returns weight and bias of each hidden layer, then those of the output layer.
        """
        hidden = []
        for layer, norm in self._hidden:
            mean, variance = norm.running_mean, norm.running_var
            assert mean is not None
            assert variance is not None
            factor = norm.weight / torch.sqrt(variance + norm.eps)
            bias = (layer.bias - mean) * factor + norm.bias
            hidden.append(((layer.weight * factor[:, None]).numpy(), bias.numpy()))
        output = (self._output.weight.numpy().copy(), self._output.bias.numpy().copy())
        return tuple(hidden), output


class Critic:
    """Network that scores packs of rows, high for real ones (WGAN-GP with PacGAN).

    Gradients are computed explicitly. The critic is piecewise linear: the leaky ReLU multiplies
    each pre-activation by a slope, and dropout rescales that slope or sets it to 0. Hence both the
    gradient of a score with respect to the input, and the gradient of the gradient penalty with
    respect to the weights, are computed from products of weights and slopes, without a double
    backward pass.

    Parameters
    ----------
    n_inputs : int
        Length of a pack: rows, each with its conditional vector.
    hidden : sequence of int
        Number of units of each hidden layer.
    rng : numpy.random.Generator
        Random source for the initial weights and the dropout.
    dropout : float
        Fraction of the hidden units that are dropped, in [0, 1).

    References
    ----------
    .. [1] Xu et al., "Modeling Tabular Data using Conditional GAN", NeurIPS 2019, section 4.4.
    .. [2] Gulrajani et al., "Improved Training of Wasserstein GANs", NeurIPS 2017.
    .. [3] Lin et al., "PacGAN", NeurIPS 2018.
    """

    def __init__(
        self,
        n_inputs: int,
        hidden: Sequence[int],
        rng: np.random.Generator,
        *,
        dropout: float = 0.5,
    ) -> None:
        self._rng = rng
        self._dropout = dropout
        self.layers: list[Dense] = []
        for n_units in (*hidden, 1):
            self.layers.append(Dense.initialize(n_inputs, n_units, rng, trains=False))
            n_inputs = n_units

    @property
    def parameters(self) -> list[Tensor]:
        """Return all trainable parameters."""
        return [part for layer in self.layers for part in (layer.weight, layer.bias)]

    def input_gradient(self, packs: Tensor) -> Tensor:
        """Return the gradient of the mean score with respect to the packs.

        Parameters
        ----------
        packs : Tensor of shape (n_inputs, n_packs)
            Rows, each with its conditional vector.
        """
        _, slopes = self._forward(self.layers[0](packs))
        top = torch.full((1, packs.shape[1]), 1.0 / packs.shape[1])
        return self.layers[0].weight.T @ self._backward(slopes, top)[0]

    def gradients(self, fake: Tensor, real: Tensor, mixing: Tensor) -> list[Tensor]:
        """Return gradients of the critic's loss, in the order of ``parameters``.

        The loss is the mean score of fake packs, minus that of real ones, plus 10 times the mean of
        ``(norm - 1)**2``, where ``norm`` is the norm of the gradient of the score at points
        interpolated between fake and real packs.

        Parameters
        ----------
        fake, real : Tensor of shape (n_inputs, n_packs)
            Packs of generated and of real rows.
        mixing : Tensor of shape (1, n_packs)
            Weight of the real pack in each interpolated point, in [0, 1].
        """
        n, first_layer = fake.shape[1], self.layers[0]
        inputs = first_layer(fake), first_layer(real)
        # the layer is affine: these are its outputs at the interpolated points
        interpolated = torch.lerp(*inputs, mixing)
        states, slopes = self._forward(torch.cat([*inputs, interpolated], 1))
        top = torch.tensor([1.0 / n, -1.0 / n, 1.0]).repeat_interleave(n)[None]
        score_gradients = self._backward(slopes, top)
        input_penalty, *penalties = self._penalty_gradients(
            score_gradients[0][:, 2 * n :], [s[:, 2 * n :] for s in slopes]
        )
        # One product adds up both parts of a weight's gradient. For the scores: their gradients
        # times the inputs of the layer. For the penalty: the gradients of the score at the
        # interpolated points times the derivatives of the penalty.
        weight = score_gradients[0] @ torch.cat([fake, real, input_penalty], 1).T
        gradients = [weight, score_gradients[0][:, : 2 * n].sum(1)]
        for state, penalty, gradient in zip(states, penalties, score_gradients[1:], strict=True):
            gradients.append(gradient @ torch.cat([state[:, : 2 * n], penalty], 1).T)
            gradients.append(gradient[:, : 2 * n].sum(1))
        return gradients

    def _forward(self, raw: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Run the forward pass from the pre-activations of the first layer.

        Returns the outputs and the slopes of all hidden units; slopes are 0 where dropped out.
        """
        states: list[Tensor] = []
        slopes: list[Tensor] = []
        for layer in self.layers[1:]:
            slope = torch.where(raw > 0, 1.0, _SLOPE)
            if self._dropout:
                active = self._rng.random(tuple(raw.shape), dtype=np.float32) >= self._dropout
                slope = slope * torch.from_numpy(active) / (1.0 - self._dropout)
            slopes.append(slope)
            states.append(raw * slopes[-1])
            raw = layer(states[-1])
        return states, slopes

    def _backward(self, slopes: Sequence[Tensor], top: Tensor) -> list[Tensor]:
        """Return gradients with respect to all layers' pre-activations, first to last.

        Parameters
        ----------
        slopes : sequence of Tensor
            Slopes of the hidden units.
        top : Tensor of shape (1, n_packs)
            Gradient with respect to the scores.
        """
        gradients = [top]
        for layer, slope in zip(reversed(self.layers[1:]), reversed(slopes), strict=True):
            gradients.insert(0, (layer.weight.T @ gradients[0]) * slope)
        return gradients

    def _penalty_gradients(self, score_gradient: Tensor, slopes: Sequence[Tensor]) -> list[Tensor]:
        """Return the derivatives of the penalty with respect to the score's gradients.

        The first is for the gradient of the score with respect to the input, the others for its
        gradients with respect to the outputs of the hidden layers, first to last.

        Parameters
        ----------
        score_gradient : Tensor of shape (n_units, n_packs)
            Gradient of the score with respect to the pre-activations of the first layer.
        slopes : sequence of Tensor
            Slopes of the hidden units.
        """
        gradient = self.layers[0].weight.T @ score_gradient
        norm = gradient.square().sum(0, keepdim=True).sqrt()
        factor = 2.0 * _PENALTY / score_gradient.shape[1] * (norm - 1.0) / norm.clamp(min=1e-12)
        gradients = [factor * gradient]
        for layer, slope in zip(self.layers[:-1], slopes, strict=True):
            gradients.append((layer.weight @ gradients[-1]) * slope)
        return gradients


_ADAM_BETAS = (0.5, 0.9)


def train(
    matrix: Singles,
    by_category: RowsByCategory,
    layout: Layout,
    nominal: Sequence[int],
    settings: TrainingSettings,
    *,
    seed: Sequence[int],
    progress: Progress = silent,
) -> TrainedGenerator:
    """Train a generator on encoded rows.

    The same arguments give bit-identical results on the same processor: training uses one thread,
    and a single numpy generator is the source of all random numbers.

    Parameters
    ----------
    matrix : float32 array of shape (n_rows, layout.width)
        Encoded rows.
    by_category : RowsByCategory
        Index of the same rows by category.
    layout : Layout
        Layout of ``matrix``.
    nominal : sequence of int
        Indices of the nominal columns of the table, for which conditions are drawn.
    settings : TrainingSettings
        Settings of networks and optimizers.
    seed : sequence of int
        Seed of weights, noise, conditions, batches and dropout.
    progress : callable
        Called after each epoch.

    Raises
    ------
    ValueError
        If the training diverges.

    References
    ----------
    .. [1] Xu et al., "Modeling Tabular Data using Conditional GAN", NeurIPS 2019, section 4.
    """
    with one_thread():
        loop = _TrainingLoop(
            torch.from_numpy(matrix), by_category, layout, nominal, settings=settings, seed=seed
        )
        for epoch in range(settings.epochs):
            loop.epoch()
            progress(epoch + 1, settings.epochs, "training a generator")
        hidden, output = loop.generator.freeze()
    if not all(np.isfinite(part).all() for layer in (*hidden, output) for part in layer):
        raise ValueError(
            f"the training diverged with learning_rate={settings.learning_rate}; lower it"
        )
    return TrainedGenerator(hidden, output, len(layout.scalars), settings.noise, settings.embedding)


class _TrainingLoop:
    """Training loop: networks, optimizers and their steps."""

    def __init__(
        self,
        matrix: Tensor,
        by_category: RowsByCategory,
        layout: Layout,
        nominal: Sequence[int],
        *,
        settings: TrainingSettings,
        seed: Sequence[int],
    ) -> None:
        self._matrix, self._by_category = matrix, by_category
        self._layout, self._nominal = layout, nominal
        self._conditions = by_category.conditions()
        self._settings = settings
        self._rng = rng = np.random.default_rng(seed)
        self._batch = settings.batch_size_for(len(matrix))
        width = self._conditions.width
        self.generator = Generator(settings.embedding + width, settings.generator, layout, rng)
        if settings.informed:
            counts = matrix[:, len(layout.scalars) :].sum(0)
            self.generator.initialize_biases((counts + 0.5) / (len(matrix) + 0.5))
        n_inputs = settings.pac * (layout.width + width)
        self._critic = Critic(n_inputs, settings.critic, rng, dropout=settings.dropout)
        adam = partial(torch.optim.Adam, lr=settings.learning_rate, betas=_ADAM_BETAS, fused=True)
        self._generator_adam = adam(self.generator.parameters)
        self._critic_adam = adam(self._critic.parameters)

    def epoch(self) -> None:
        """Train for one epoch: one generator step for each full batch.

        Each generator step comes after ``critic_steps`` critic steps. There is at least one, also
        if the table is smaller than a batch.
        """
        for _ in range(max(len(self._matrix) // self._batch, 1)):
            for _ in range(self._settings.critic_steps):
                self._critic_step()
            self._generator_step()

    def _critic_step(self) -> None:
        picks, condition = self._draw_conditions()
        with torch.no_grad():
            _, fake = self._generate(condition)
        real = self._draw_real(picks).T
        n_packs = self._batch // self._settings.pac
        mixing = torch.from_numpy(self._rng.random((1, n_packs), dtype=np.float32))
        gradients = self._critic.gradients(
            self._pack(fake, condition), self._pack(real, condition), mixing
        )
        for parameter, gradient in zip(self._critic.parameters, gradients, strict=True):
            parameter.grad = gradient
        self._critic_adam.step()

    def _generator_step(self) -> None:
        picks, condition = self._draw_conditions()
        logits, fake = self._generate(condition)
        with torch.no_grad():
            gradient = -self._critic.input_gradient(self._pack(fake, condition))
        gradient = gradient.view(-1, self._batch)[: self._layout.width]
        loss = (fake * gradient).sum()  # its gradient is that of the negative mean score
        if picks is not None:
            loss = loss + self._condition_loss(logits, picks)
        self._generator_adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._generator_adam.step()

    def _draw_conditions(self) -> tuple[Picks | None, Tensor | None]:
        if not self._conditions.width:
            return None, None
        picks = self._conditions.draw(self._batch, self._rng, damped=True)  # log frequencies
        return picks, torch.from_numpy(self._conditions.vectors(picks)).T

    def _generate(self, condition: Tensor | None) -> tuple[Tensor, Tensor]:
        """Generate logits and encoded rows from new noise, feature-major."""
        layout, settings = self._layout, self._settings
        noise = draw_noise(settings.noise, settings.embedding, self._batch, self._rng)
        inputs = torch.from_numpy(noise)
        if condition is not None:
            inputs = torch.cat([inputs, condition])
        logits = self.generator.logits(inputs)
        shape = (layout.width - len(layout.scalars), self._batch)
        exponential = self._rng.standard_exponential(shape, dtype=np.float32)
        return logits, self.generator.activate(logits, torch.from_numpy(exponential))

    def _draw_real(self, picks: Picks | None) -> Tensor:
        if picks is None:
            rows = self._rng.integers(len(self._matrix), size=self._batch)
        else:
            rows = self._by_category.draw(picks, self._rng)
        return self._matrix.index_select(0, torch.from_numpy(rows))

    def _pack(self, rows: Tensor, condition: Tensor | None) -> Tensor:
        """Arrange feature-major rows and conditions as packs, one per column."""
        stacked = rows if condition is None else torch.cat([rows, condition])
        return stacked.reshape(-1, self._batch // self._settings.pac)

    def _condition_loss(self, logits: Tensor, picks: Picks) -> Tensor:
        """Return the mean cross-entropy between conditions and generated categories."""
        layout = self._layout
        losses = []
        for index, column in enumerate(self._nominal):
            matching = torch.from_numpy(np.flatnonzero(picks.columns == index))
            start = layout.starts[column]
            scores = logits[start : start + layout.widths[column]][:, matching].T
            categories = torch.from_numpy(picks.categories)[matching]
            losses.append(torch.nn.functional.cross_entropy(scores, categories, reduction="sum"))
        return torch.stack(losses).sum() / self._batch
