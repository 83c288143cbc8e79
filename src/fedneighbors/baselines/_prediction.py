"""Whom rivals serve that are fitted, and with what: the model for all, or what a client has."""

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper._base import ClientClassifier, Owners
from fedneighbors.methods.knnper._settings import RoundSettings

Vector = npt.NDArray[np.floating[Any]]
Owns = dict[str, Vector]
"""What each client has for itself, as one vector."""

NOTHING: Vector = np.empty(0, np.float32)
"""What a client has where a method leaves nothing to it, or where it has no rows any more."""


class Serving(ClientClassifier):
    """What rivals have in common that are fitted: each client gets what its own part says."""

    clients_: Owns
    weights_: Vector
    overall_: Floats
    _ground: Any
    _rounds: RoundSettings

    def predict_proba(self, X: Any, parties: Owners = None) -> Floats:
        """Return the shares of the classes, shape (n_rows, n_classes).

        Parameters
        ----------
        X : array of shape (n_rows, ...)
            Rows.
        parties : sequence of shape (n_rows,), optional
            Which client asks for each row. A client that is not known, and None where there are
            several, get what the model for all says, with a warning.
        """
        check_is_fitted(self)
        x = self._ground.tensor(self._rows(X))
        with self._network.alone():
            scores = self._for_all(x)
            for name, rows in self._askers(parties, len(x)).items():
                own = self.clients_[name]
                if len(own):
                    scores[rows] = self._for_one(own, x[rows], scores[rows])
        return np.asarray(np.exp(scores))

    def _for_all(self, x: Any) -> Floats:
        """Return logarithms of the shares that a client gets of which nothing is known."""
        found: Floats = self._ground.log_shares(self.weights_, x, self.device)
        return found

    def _for_one(self, own: Vector, x: Any, _scores: Floats) -> Floats:
        """Return logarithms of the shares that a client gets with what it has for itself.

        Parameters
        ----------
        own : float array
            What it has.
        x : Tensor of shape (n_rows, ...)
            Its rows.
        _scores : float64 array of shape (n_rows, n_classes)
            What the model for all says of them.
        """
        found: Floats = self._ground.log_shares(self._network_weights(own), x, self.device)
        return found

    def _network_weights(self, own: Vector) -> Vector:
        """Return the network's weights for a client; by default what it has."""
        return own
