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
        With the client's own centers (:data:`LOCAL`) or the merged ones (:data:`MERGED`).
    centers : tuple of int
        Number of negative and of positive centers.
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
    """Run the paper's second phase; score its nodes and real rows.

    The server holds out a tenth of the rows; two clients share the others, and each holds out a
    fifth as its test set (sections 4.1 and 4.2 of the paper, steps b). All splits are stratified.

    Parameters
    ----------
    rows : (X, y)
        Training rows; synthetic in the paper.
    real : (X, y)
        Real rows outside the training of generator and model.
    thresholds : tuple of float
        Dthr of the clients and of the server.
    seed : int
        Seed of the splits.
    """
    x, y = rows
    owners, server_rows = split_rows(y, None, share=2, holdout=_SERVER_SHARE, seed=seed)
    client_rows, owner = np.flatnonzero(~server_rows), np.asarray(owners)
    clients = {}
    for name in np.unique(owner).tolist():
        rows_of_client = client_rows[owner == name]
        clients[name] = train_test_split(
            rows_of_client, test_size=_CLIENT_TEST, stratify=y[rows_of_client], random_state=seed
        )
    model = FedPNNClassifier.paper(*thresholds, share=None, holdout=0.0)
    scores = []
    for name, (train, test) in clients.items():
        local_model = FedPNNClassifier.paper(*thresholds, share=None, holdout=0.0)
        local_model.set_params(server_threshold=None).fit(x[train], y[train])
        scores.append(score_model(local_model, (x[test], y[test]), node=name, stage=LOCAL))
    train = np.concatenate([rows_of_client for rows_of_client, _ in clients.values()])
    parties = np.repeat(
        list(clients), [len(rows_of_client) for rows_of_client, _ in clients.values()]
    )
    model.fit(x[train], y[train], parties=parties)
    for name, (_, test) in clients.items():
        scores.append(score_model(model, (x[test], y[test]), node=name, stage=MERGED))
    scores.append(score_model(model, (x[server_rows], y[server_rows]), node=SERVER, stage=MERGED))
    scores.append(score_model(model, real, node=REAL, stage=MERGED))
    return scores


def score_model(model: FedPNNClassifier, rows: Labeled, *, node: str, stage: str) -> NodeScore:
    """Return a model's scores on rows of classes 0 and 1."""
    x, y = rows
    with threadpool_limits(1):
        shares = model.predict_proba(x)
    negative, positive = np.bincount(model.model_.center_labels, minlength=2).tolist()
    predicted = shares.argmax(axis=1)
    return NodeScore(
        node,
        stage,
        (negative, positive),
        balanced_accuracy(y, predicted),
        float(roc_auc_score(y, shares[:, 1])),
    )
