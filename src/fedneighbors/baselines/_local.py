"""No federation at all: each client trains a network on its own rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.baselines._base import Rival
from fedneighbors.baselines._prediction import Owns, Vector

if TYPE_CHECKING:  # it needs torch
    from fedneighbors.baselines._trainer import Bench


def trained_alone(bench: "Bench") -> Owns:
    """Return what each client's network comes to over all rounds, by its own rows alone.

    Parameters
    ----------
    bench : Bench
        The clients; who would take part in a round trains in it.
    """
    owns = dict.fromkeys(bench.names, bench.initial)
    for number in range(bench.rounds.n_rounds):
        owns.update(bench.trained(owns, bench.regime(number), number))
    return owns


@dataclass(kw_only=True, eq=False, repr=False)
class LocalClassifier(Rival):
    """A network for each client, trained on its own rows and nothing else.

    Each makes as many passes as it would in ``n_rounds`` rounds, at the same rates; there is no
    network for all, and ``participation`` means nothing. A client that comes later does the same;
    one that is not known gets the shares of the classes over all clients.

    Parameters
    ----------
    model, embedding, head, hidden
        As :class:`~fedneighbors.methods.knnper.KNNPerClassifier` takes them, like all others.
    n_rounds, participation, local_epochs, batch_size
        Of the training.
    learning_rate, momentum, weight_decay
        Of its steps.
    validation, standardize, trainer, device, classes, random_state
        Of what tuning holds out, of columns, of how and where clients train side by side, of labels
        that may come, and of all that is drawn.

    References
    ----------
    .. [1] Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning through Local
       Memorization", ICML 2022, Table 2.
    """

    grid: ClassVar[tuple[Mapping[str, Any], ...]] = tuple(
        {"learning_rate": value} for value in (0.02, 0.05, 0.1, 0.2)
    )

    def _learned(self, bench: "Bench") -> tuple[Vector, Owns]:
        return bench.initial, trained_alone(bench)

    def _joined(self, bench: "Bench") -> Owns:
        return trained_alone(bench)

    def _for_all(self, x: Any) -> Floats:
        return np.tile(np.log(self.overall_), (len(x), 1))
