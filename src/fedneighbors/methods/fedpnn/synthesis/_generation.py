"""A trained generator as plain arrays: it makes rows without PyTorch."""

from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from fedneighbors._typing import Singles
from fedneighbors.methods.fedpnn.synthesis._conditions import Conditions, Picks
from fedneighbors.methods.fedpnn.synthesis._noise import Noise, draw_noise

_BATCH = 500  # fixed, so that the same seed gives the same bits whatever is asked for


@dataclass(frozen=True, eq=False)
class TrainedGenerator:
    """Weights of a generator after training, its batch normalization folded in.

    Parameters
    ----------
    hidden : tuple of (weight, bias)
        Layers ``relu(weight @ h + bias)``, each put before its input; float32.
    output : (weight, bias)
        The last layer: tanh for the places, logits for the one-hot parts; float32.
    n_scalars : int
        Rows of the output that are places in modes.
    noise : {"normal", "mixture", "concat"}
        What the generator was trained on.
    embedding : int
        Entries of a noise vector.
    """

    hidden: tuple[tuple[Singles, Singles], ...]
    output: tuple[Singles, Singles]
    n_scalars: int
    noise: Noise
    embedding: int

    @property
    def n_parameters(self) -> int:
        """Numbers in all layers."""
        return sum(w.size + b.size for w, b in (*self.hidden, self.output))

    def rows(
        self,
        n_rows: int,
        rng: np.random.Generator,
        conditions: Conditions,
        *,
        fixed: Picks | None = None,
    ) -> Singles:
        """Generate rows as the layout of the training matrix describes them.

        One-hot parts hold perturbed logits, so that the largest entry is a draw from the
        probabilities that the generator gives.

        Parameters
        ----------
        n_rows : int
            How many.
        rng : numpy.random.Generator
            Source of noise, conditions and draws.
        conditions : Conditions
            Those of the training; conditions are drawn by frequency.
        fixed : Picks, optional
            The condition of every row, of shape (1,).

        Returns
        -------
        float32 array of shape (n_rows, layout.width)
        """
        batches = []
        with threadpool_limits(limits=1):  # more threads may change last bits
            for _ in range(0, n_rows, _BATCH):
                batches.append(self._batch(rng, conditions, fixed))
        made: Singles = np.concatenate(batches, axis=1)[:, :n_rows].T
        return np.ascontiguousarray(made)

    def _batch(
        self, rng: np.random.Generator, conditions: Conditions, fixed: Picks | None
    ) -> Singles:
        state = draw_noise(self.noise, self.embedding, _BATCH, rng)
        if conditions.width:
            picks = fixed or conditions.draw(_BATCH, rng, damped=False)
            vectors = np.broadcast_to(conditions.vectors(picks), (_BATCH, conditions.width))
            state = np.concatenate([state, vectors.T])
        for weight, bias in self.hidden:
            state = np.concatenate([np.maximum(weight @ state + bias[:, None], 0), state])
        weight, bias = self.output
        made: Singles = weight @ state + bias[:, None]
        made[: self.n_scalars] = np.tanh(made[: self.n_scalars])
        spread = rng.standard_exponential(made[self.n_scalars :].shape, dtype=np.float32)
        made[self.n_scalars :] -= np.log(np.maximum(spread, np.finfo(np.float32).tiny))
        return made
