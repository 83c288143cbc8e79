"""The training of one generator: WGAN-GP with packs, conditions and training by sampling."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedneighbors._typing import Progress, Singles, silent
from fedneighbors.methods.fedpnn.synthesis._encoding import Layout
from fedneighbors.methods.fedpnn.synthesis._fitting import TrainingSettings
from fedneighbors.methods.fedpnn.synthesis._generation import (
    Picks,
    RowsByCategory,
    TrainedGenerator,
    draw_noise,
)
from fedneighbors.methods.fedpnn.synthesis._networks import Critic, Generator
from fedneighbors.tabular._ownership import one_thread

_BETAS = (0.5, 0.9)


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

    The same arguments give the same bits on one processor: one thread works, and all that is drawn
    comes from a single numpy generator.

    Parameters
    ----------
    matrix : float32 array of shape (n_rows, layout.width)
        Encoded rows.
    by_category : RowsByCategory
        The same rows, sorted by each nominal column.
    layout : Layout
        Of ``matrix``.
    nominal : sequence of int
        The table columns that conditions are about.
    settings : TrainingSettings
        Sizes and speeds.
    seed : sequence of int
        Of weights, noise, conditions, batches and dropout.
    progress : callable
        Told after each epoch.

    Raises
    ------
    ValueError
        If the training diverges.

    References
    ----------
    .. [1] Xu et al., "Modeling Tabular Data using Conditional GAN", NeurIPS 2019, section 4.
    """
    with one_thread():
        loop = _Loop(
            torch.from_numpy(matrix), by_category, layout, nominal, settings=settings, seed=seed
        )
        for epoch in range(settings.epochs):
            loop.epoch()
            progress(epoch + 1, settings.epochs, "training a generator")
        hidden, output = loop.generator.frozen()
    if not all(np.isfinite(part).all() for layer in (*hidden, output) for part in layer):
        raise ValueError(
            f"the training diverged with learning_rate={settings.learning_rate}; lower it"
        )
    return TrainedGenerator(hidden, output, len(layout.scalars), settings.noise, settings.embedding)


class _Loop:
    """Networks and optimizers, one step after the other."""

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
        self._batch = settings.batch_of(len(matrix))
        extra = self._conditions.width
        self.generator = Generator(settings.embedding + extra, settings.generator, layout, rng)
        if settings.informed:
            counts = matrix[:, len(layout.scalars) :].sum(0)
            self.generator.inform((counts + 0.5) / (len(matrix) + 0.5))
        n_inputs = settings.pac * (layout.width + extra)
        self._critic = Critic(n_inputs, settings.critic, rng, dropout=settings.dropout)
        adam = partial(torch.optim.Adam, lr=settings.learning_rate, betas=_BETAS, fused=True)
        self._generator_adam = adam(self.generator.parameters)
        self._critic_adam = adam(self._critic.parameters)

    def epoch(self) -> None:
        """Go as many steps as batches fit into the rows."""
        for _ in range(max(len(self._matrix) // self._batch, 1)):
            for _ in range(self._settings.critic_steps):
                self._critic_step()
            self._generator_step()

    def _critic_step(self) -> None:
        picks, condition = self._drawn_conditions()
        with torch.no_grad():
            _, fake = self._generated(condition)
        real = self._real(picks).T
        n_packs = self._batch // self._settings.pac
        mixing = torch.from_numpy(self._rng.random((1, n_packs), dtype=np.float32))
        found = self._critic.gradients(
            self._packed(fake, condition), self._packed(real, condition), mixing
        )
        for parameter, gradient in zip(self._critic.parameters, found, strict=True):
            parameter.grad = gradient
        self._critic_adam.step()

    def _generator_step(self) -> None:
        picks, condition = self._drawn_conditions()
        logits, fake = self._generated(condition)
        with torch.no_grad():
            pull = -self._critic.input_gradient(self._packed(fake, condition))
        pull = pull.view(-1, self._batch)[: self._layout.width]
        loss = (fake * pull).sum()  # its gradient is that of the mean score
        if picks is not None:
            loss = loss + self._condition_loss(logits, picks)
        self._generator_adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._generator_adam.step()

    def _drawn_conditions(self) -> tuple[Picks | None, Tensor | None]:
        if not self._conditions.width:
            return None, None
        picks = self._conditions.draw(self._batch, self._rng, damped=True)
        return picks, torch.from_numpy(self._conditions.vectors(picks)).T

    def _generated(self, condition: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits and activated rows for fresh noise, feature-major."""
        layout, settings = self._layout, self._settings
        drawn = draw_noise(settings.noise, settings.embedding, self._batch, self._rng)
        inputs = torch.from_numpy(drawn)
        if condition is not None:
            inputs = torch.cat([inputs, condition])
        logits = self.generator.logits(inputs)
        shape = (layout.width - len(layout.scalars), self._batch)
        spread = self._rng.standard_exponential(shape, dtype=np.float32)
        return logits, self.generator.activated(logits, torch.from_numpy(spread))

    def _real(self, picks: Picks | None) -> Tensor:
        if picks is None:
            at = self._rng.integers(len(self._matrix), size=self._batch)
        else:
            at = self._by_category.draw(picks, self._rng)
        return self._matrix.index_select(0, torch.from_numpy(at))

    def _packed(self, rows: Tensor, condition: Tensor | None) -> Tensor:
        """Packs of rows with their conditions, one a column: a view of feature-major rows."""
        whole = rows if condition is None else torch.cat([rows, condition])
        return whole.reshape(-1, self._batch // self._settings.pac)

    def _condition_loss(self, logits: Tensor, picks: Picks) -> Tensor:
        """Mean cross-entropy between each condition and what was generated for its column."""
        layout = self._layout
        losses = []
        for place, column in enumerate(self._nominal):
            mine = torch.from_numpy(np.flatnonzero(picks.columns == place))
            start = layout.starts[column]
            part = logits[start : start + layout.widths[column]][:, mine].T
            wanted = torch.from_numpy(picks.categories)[mine]
            losses.append(torch.nn.functional.cross_entropy(part, wanted, reduction="sum"))
        return torch.stack(losses).sum() / self._batch
