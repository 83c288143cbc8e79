"""Baselines with a shared body and a head for each client."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedneighbors.baselines._base import Baseline, check_rate
from fedneighbors.baselines._dynamic_clients import ClientParts, Vector
from fedneighbors.methods.knnper._settings import check_count

if TYPE_CHECKING:  # imports torch
    from fedneighbors.baselines._trainer import Ends, FederatedTrainer


NEW_HEAD_EPOCHS = 20
"""Epochs of the head of a client added after training, with the rounds' learning rates."""


@dataclass(kw_only=True, eq=False, repr=False)
class SharedBody:
    """Training of a shared body with a head for each client.

    After the last round every client's head is trained further on the final body, since it was
    trained on the body of an earlier round. The shared model is the body with the mean of the
    heads, weighted by rows. A client added after training starts from this mean head, and trains it
    with a fixed body.

    Parameters
    ----------
    tuning_epochs : int
        Epochs of a head after the last round, 0 for none. A client added after training first
        trains its head for 20 epochs with the learning rates of the rounds.
    tuning_rate : float, optional
        Learning rate of these epochs; by default that of the last round.
    """

    tuning_epochs: int = 5
    tuning_rate: float | None = None

    def _check_own_parameters(self) -> None:
        check_count("tuning_epochs", self.tuning_epochs, minimum=0)
        check_rate("tuning_rate", self.tuning_rate, optional=True)

    def _train(self, trainer: "FederatedTrainer") -> tuple[Vector, ClientParts]:
        weights = trainer.initial.copy()
        heads: ClientParts = dict.fromkeys(trainer.names, weights[trainer.head])
        for number in range(trainer.rounds.limit):
            bodies = self._train_bodies(trainer, weights, heads, number)
            weights[trainer.body] = trainer.average(weights[trainer.body], bodies)
        start = weights[trainer.head]
        weights[trainer.head] = trainer.average(start, heads.items())
        return weights, self._tune(trainer, weights, heads, self.tuning_epochs, self.tuning_rate)

    def _fit_own_parts(self, trainer: "FederatedTrainer") -> ClientParts:
        heads = dict.fromkeys(trainer.names, trainer.initial[trainer.head])
        past = 0.0  # fraction of the rounds
        for rate, part in trainer.rounds.rates():
            epochs = round(NEW_HEAD_EPOCHS * (past + part)) - round(NEW_HEAD_EPOCHS * past)
            heads = self._tune(trainer, trainer.initial, heads, epochs, rate)
            past += part
        return self._tune(trainer, trainer.initial, heads, self.tuning_epochs, self.tuning_rate)

    def _train_bodies(
        self, trainer: "FederatedTrainer", weights: Vector, heads: ClientParts, number: int
    ) -> "Ends":
        """Train a round; yield participants' bodies and update their heads."""
        for group in trainer.groups(trainer.participants(number)):
            starts = {name: trainer.agreement.with_head(weights, heads[name]) for name in group}
            for name, after in self._train_round(trainer, starts, number):
                heads[name] = after[trainer.head]
                yield name, after[trainer.body]

    @abstractmethod
    def _train_round(self, trainer: "FederatedTrainer", starts: ClientParts, number: int) -> "Ends":
        """Yield participants' weights after their training in a round.

        Parameters
        ----------
        trainer : FederatedTrainer
            All clients.
        starts : dict of str to float array of shape (n_weights,)
            Weights of each participant: the shared body and its own head.
        number : int
            Number of the round, from 0.
        """

    def _tune(
        self,
        trainer: "FederatedTrainer",
        weights: Vector,
        heads: ClientParts,
        epochs: int,
        rate: float | None,
    ) -> ClientParts:
        """Return the heads after more epochs with a fixed body."""
        if epochs == 0:
            return heads
        regime, tuned_heads = trainer.tuning_regime(epochs, rate), {}
        for group in trainer.groups(heads):
            starts = {name: trainer.agreement.with_head(weights, heads[name]) for name in group}
            tuned_heads.update(trainer.train_heads(starts, regime))
        return tuned_heads


@dataclass(kw_only=True, eq=False, repr=False)
class FedPerClassifier(SharedBody, Baseline):
    """A shared body and a head per client; each client trains both together [1]_.

    A client added after training trains a head with a fixed body.

    Parameters
    ----------
    model, embedding, head, hidden
        As in :class:`~fedneighbors.methods.knnper.KNNPerClassifier`, like all parameters below.
    n_rounds, participation, local_epochs, batch_size
        Training schedule.
    learning_rate, momentum, weight_decay
        Parameters of SGD.
    validation, standardize, trainer, device, classes, random_state
        Fraction of rows held out for tuning, scaling of columns, batching of clients, device,
        possible labels, and random seed.
    tuning_epochs : int
        Epochs of a head after the last round, 0 for none. A client added after training first
        trains its head for 20 epochs with the learning rates of the rounds.
    tuning_rate : float, optional
        Learning rate of these epochs; by default that of the last round.

    References
    ----------
    .. [1] Arivazhagan, Aggarwal, Singh and Choudhary, "Federated Learning with Personalization
       Layers", 2019, Algorithms 1 and 2.
    """

    _own_part = "head"
    grid = tuple({"tuning_epochs": value} for value in (0, 5, 20, 60))

    def _train_round(self, trainer: "FederatedTrainer", starts: ClientParts, number: int) -> "Ends":
        return trainer.train(starts, trainer.regime(number), number)


@dataclass(kw_only=True, eq=False, repr=False)
class FedRepClassifier(SharedBody, Baseline):
    """A shared body and a head per client; each client trains its head first [1]_.

    In a round a client trains its head for ``head_epochs`` with a fixed body, and then the body for
    ``local_epochs`` with a fixed head. A client added after training trains a head with a fixed
    body.

    Parameters
    ----------
    model, embedding, head, hidden
        As in :class:`~fedneighbors.methods.knnper.KNNPerClassifier`, like all parameters below.
    n_rounds, participation, local_epochs, batch_size
        Training schedule.
    learning_rate, momentum, weight_decay
        Parameters of SGD.
    validation, standardize, trainer, device, classes, random_state
        Fraction of rows held out for tuning, scaling of columns, batching of clients, device,
        possible labels, and random seed.
    tuning_epochs : int
        Epochs of a head after the last round, 0 for none. A client added after training first
        trains its head for 20 epochs with the learning rates of the rounds.
    tuning_rate : float, optional
        Learning rate of these epochs; by default that of the last round.
    head_epochs : int
        Epochs of the head per round.
    head_learning_rate : float, optional
        Learning rate of the heads in the first round, lowered like that of the body. None:
        ``learning_rate``.

    References
    ----------
    .. [1] Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for
       Personalized Federated Learning", ICML 2021, Algorithm 1; for clients added later, Marfoq
       et al., ICML 2022, Section 6.
    """

    _own_part = "head"
    grid = (
        {"head_epochs": 1, "tuning_epochs": 20},
        {"head_epochs": 5, "tuning_epochs": 1},
        {"head_epochs": 5, "tuning_epochs": 20},
        {"head_epochs": 10, "tuning_epochs": 20, "head_learning_rate": 0.1},
    )

    head_epochs: int = 5
    head_learning_rate: float | None = None

    def _check_own_parameters(self) -> None:
        super()._check_own_parameters()
        check_count("head_epochs", self.head_epochs)
        check_rate("head_learning_rate", self.head_learning_rate, optional=True)

    def _train_round(self, trainer: "FederatedTrainer", starts: ClientParts, number: int) -> "Ends":
        body_regime = trainer.regime(number)
        head_regime = replace(body_regime, epochs=self.head_epochs)
        if self.head_learning_rate is not None:
            rate = self.head_learning_rate * body_regime.learning_rate / self.learning_rate
            head_regime = replace(head_regime, learning_rate=rate)
        heads, bodies = trainer.network.head_names, trainer.network.body_names
        after_heads = dict(trainer.train(starts, head_regime, number, "head", only=heads))
        return trainer.train(after_heads, body_regime, number, "body", only=bodies)
