"""Second phase of the paper: FedPNN on rows split over two clients and a server."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

from experiments.fedpnn.generated import Labeled
from fedneighbors.methods.fedpnn.estimator import FedPNNClassifier, split_rows
from fedneighbors.metrics import balanced_accuracy

LOCAL, MERGED = "by itself", "after meta-clustering"
SERVER, REAL = "server", "real rows"
_SERVER_SHARE, _CLIENT_TEST = 0.1, 0.2


@dataclass(frozen=True)
class NodeScore:
    """Scores of a model at one node.

    Parameters
    ----------
    node : str
        ``"client 1"``, ``"client 2"``, ``"server"`` or ``"real rows"``.
    stage : str
        With the client's own centers, or with those of the server.
    centers : tuple of int
        Negative and positive centers of the model.
    balanced_accuracy : float
        The paper's AUC.
    roc_auc : float
        Area under the curve.
    """

    node: str
    stage: str
    centers: tuple[int, int]
    balanced_accuracy: float
    roc_auc: float

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Return the score from the result of ``dataclasses.asdict``."""
        return cls(**(dict(raw) | {"centers": tuple(raw["centers"])}))


def score_nodes(
    rows: Labeled, real: Labeled, thresholds: tuple[float, float], *, seed: int
) -> list[NodeScore]:
    """Run the paper's second phase on rows; score real rows too.

    A tenth stays with the server, the rest is divided among two clients; each keeps a fifth for its
    test (section 4.1 of the paper, step b, and 4.2, step b). All draws are stratified by class.

    Parameters
    ----------
    rows : (X, y)
        Synthetic ones, in the paper.
    real : (X, y)
        Rows that nothing was fitted to.
    thresholds : tuple of float
        Dthr of the clients and of the server.
    seed : int
        Of the dealing.
    """
    x, y = rows
    owners, kept = split_rows(y, None, share=2, holdout=_SERVER_SHARE, seed=seed)
    of_clients, owner = np.flatnonzero(~kept), np.asarray(owners)
    clients = {}
    for name in np.unique(owner).tolist():
        own = of_clients[owner == name]
        clients[name] = train_test_split(
            own, test_size=_CLIENT_TEST, stratify=y[own], random_state=seed
        )
    model = FedPNNClassifier.paper(*thresholds, share=None, holdout=0.0)
    scores = []
    for name, (fitted, tested) in clients.items():
        alone = FedPNNClassifier.paper(*thresholds, share=None, holdout=0.0)
        alone.set_params(server_threshold=None).fit(x[fitted], y[fitted])
        scores.append(score_model(alone, (x[tested], y[tested]), node=name, stage=LOCAL))
    fitted = np.concatenate([own for own, _ in clients.values()])
    parties = np.repeat(list(clients), [len(own) for own, _ in clients.values()])
    model.fit(x[fitted], y[fitted], parties=parties)
    for name, (_, tested) in clients.items():
        scores.append(score_model(model, (x[tested], y[tested]), node=name, stage=MERGED))
    scores.append(score_model(model, (x[kept], y[kept]), node=SERVER, stage=MERGED))
    scores.append(score_model(model, real, node=REAL, stage=MERGED))
    return scores


def score_model(model: FedPNNClassifier, rows: Labeled, *, node: str, stage: str) -> NodeScore:
    """Return a model's scores on rows of classes 0 and 1."""
    x, y = rows
    with threadpool_limits(1):
        shares = model.predict_proba(x)
    negative, positive = np.bincount(model.model_.center_labels, minlength=2).tolist()
    guess = shares.argmax(axis=1)
    return NodeScore(
        node,
        stage,
        (negative, positive),
        balanced_accuracy(y, guess),
        float(roc_auc_score(y, shares[:, 1])),
    )
