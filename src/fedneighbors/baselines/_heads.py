"""Baselines with a shared body and a head for each client."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedneighbors.baselines._base import Baseline, check_count, check_rate
from fedneighbors.baselines._dynamic_clients import ClientParts, Vector

if TYPE_CHECKING:  # imports torch
    from fedneighbors.baselines._trainer import Ends, FederatedTrainer


FIRST_PASSES = 20
"""Epochs of a later client's head, with the learning rates of the rounds."""


@dataclass(kw_only=True, eq=False, repr=False)
class SharedBody:
    """Training of a shared body with a head for each client.

    After the last round every client's head is trained further on the final body, since it was
    trained on the body of an earlier round. The shared model is the body with the mean of the
    heads, weighted by rows. A later client trains its head from there, with a fixed body.

    Parameters
    ----------
    tuning_epochs : int
        Epochs of a head after the last round, 0 for none. A later client trains its head for 20
        more epochs, with the learning rates of the rounds.
    tuning_rate : float, optional
        Learning rate; by default that of the last round.
    """

    tuning_epochs: int = 5
    tuning_rate: float | None = None

    def _check(self) -> None:
        check_count("tuning_epochs", self.tuning_epochs, least=0)
        check_rate("tuning_rate", self.tuning_rate, optional=True)

    def _train(self, trainer: "FederatedTrainer") -> tuple[Vector, ClientParts]:
        weights = trainer.initial.copy()
        heads: ClientParts = dict.fromkeys(trainer.names, weights[trainer.head])
        for number in range(trainer.rounds.n_rounds):
            bodies = self._bodies(trainer, weights, heads, number)
            weights[trainer.body] = trainer.average(weights[trainer.body], bodies)
        start = weights[trainer.head]
        weights[trainer.head] = trainer.average(start, heads.items())
        return weights, self._tune(trainer, weights, heads, self.tuning_epochs, self.tuning_rate)

    def _join_clients(self, trainer: "FederatedTrainer") -> ClientParts:
        heads = dict.fromkeys(trainer.names, trainer.initial[trainer.head])
        done = 0.0
        for rate, share in trainer.rounds.schedule():
            passes = round(FIRST_PASSES * (done + share)) - round(FIRST_PASSES * done)
            heads = self._tune(trainer, trainer.initial, heads, passes, rate)
            done += share
        return self._tune(trainer, trainer.initial, heads, self.tuning_epochs, self.tuning_rate)

    def _bodies(
        self, trainer: "FederatedTrainer", weights: Vector, heads: ClientParts, number: int
    ) -> "Ends":
        """Yield the bodies of a round's participants; change their heads."""
        for some in trainer.groups(trainer.participants(number)):
            starts = {name: trainer.agreement.with_head(weights, heads[name]) for name in some}
            for name, after in self._steps(trainer, starts, number):
                heads[name] = after[trainer.head]
                yield name, after[trainer.body]

    @abstractmethod
    def _steps(
        self, trainer: "FederatedTrainer", starts: ClientParts, number: int
    ) -> Iterator[tuple[str, Vector]]:
        """Yield clients' weights after their steps of a round.

        Parameters
        ----------
        trainer : FederatedTrainer
            All clients.
        starts : dict of str to float array of shape (n_weights,)
            Participants: the shared body, each with its own head.
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
        """Return the heads after further passes with a fixed body."""
        if epochs == 0:
            return heads
        regime, tuned = trainer.tuning(epochs, rate), {}
        for some in trainer.groups(heads):
            starts = {name: trainer.agreement.with_head(weights, heads[name]) for name in some}
            tuned.update(trainer.heads(starts, regime))
        return tuned


@dataclass(kw_only=True, eq=False, repr=False)
class FedPerClassifier(SharedBody, Baseline):
    """A shared body with own heads, trained together by each client [1]_.

    A later client trains a head with a fixed body.

    Parameters
    ----------
    model, embedding, head, hidden
        As in :class:`~fedneighbors.methods.knnper.KNNPerClassifier`, like all parameters below.
    n_rounds, participation, local_epochs, batch_size
        Training schedule.
    learning_rate, momentum, weight_decay
        Parameters of SGD.
    validation, standardize, trainer, device, classes, random_state
        Share of rows held out for tuning, scaling of columns, batching of clients, device, possible
        labels, and random seed.
    tuning_epochs : int
        Epochs of a head after the last round, 0 for none. A later client trains its head for 20
        more epochs, with the learning rates of the rounds.
    tuning_rate : float, optional
        Learning rate; by default that of the last round.

    References
    ----------
    .. [1] Arivazhagan, Aggarwal, Singh and Choudhary, "Federated Learning with Personalization
       Layers", 2019, Algorithms 1 and 2.
    """

    _own_part = "head"
    grid: ClassVar[tuple[Mapping[str, Any], ...]] = tuple(
        {"tuning_epochs": value} for value in (0, 5, 20, 60)
    )

    def _steps(
        self, trainer: "FederatedTrainer", starts: ClientParts, number: int
    ) -> Iterator[tuple[str, Vector]]:
        return trainer.train(starts, trainer.regime(number), number)


@dataclass(kw_only=True, eq=False, repr=False)
class FedRepClassifier(SharedBody, Baseline):
    """A shared body with own heads; each client trains its head first [1]_.

    In a round a client trains its head for ``head_epochs`` with a fixed body, and then the body for
    ``local_epochs`` with a fixed head. A later client trains a head with a fixed body.

    Parameters
    ----------
    model, embedding, head, hidden
        As in :class:`~fedneighbors.methods.knnper.KNNPerClassifier`, like all parameters below.
    n_rounds, participation, local_epochs, batch_size
        Training schedule.
    learning_rate, momentum, weight_decay
        Parameters of SGD.
    validation, standardize, trainer, device, classes, random_state
        Share of rows held out for tuning, scaling of columns, batching of clients, device, possible
        labels, and random seed.
    tuning_epochs : int
        Epochs of a head after the last round, 0 for none. A later client trains its head for 20
        more epochs, with the learning rates of the rounds.
    tuning_rate : float, optional
        Learning rate; by default that of the last round.
    head_epochs : int
        Epochs of the head per round.

    References
    ----------
    .. [1] Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for
       Personalized Federated Learning", ICML 2021, Algorithm 1; for later clients Marfoq
       et al., ICML 2022, Section 6.
    """

    _own_part = "head"
    grid: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"head_epochs": 1, "tuning_epochs": 20},
        {"head_epochs": 5, "tuning_epochs": 1},
        {"head_epochs": 5, "tuning_epochs": 20},
        {"head_epochs": 10, "tuning_epochs": 20},
    )

    head_epochs: int = 5

    def _check(self) -> None:
        super()._check()
        check_count("head_epochs", self.head_epochs)

    def _steps(
        self, trainer: "FederatedTrainer", starts: ClientParts, number: int
    ) -> Iterator[tuple[str, Vector]]:
        first = trainer.regime(number, epochs=self.head_epochs)
        heads, bodies = trainer.network.head_names, trainer.network.body_names
        with_heads = dict(trainer.train(starts, first, number, "head", only=heads))
        return trainer.train(with_heads, trainer.regime(number), number, "body", only=bodies)
