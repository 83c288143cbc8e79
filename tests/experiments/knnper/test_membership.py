"""Membership inference: a memory with k = 1 reveals its rows, a private network does not."""

import numpy as np
import pytest

from experiments.attacks.limits import largest_auc
from experiments.attacks.membership import loss_scores, true_positive_rate
from experiments.attacks.scores import auc, auc_margin
from experiments.knnper.membership import MEMBERSHIP, TARGETS
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.privacy._policy import Privacy

N_CLASSES = 40
TIGHT = Privacy(epsilon="1/10", delta=1e-5, classes=tuple(range(N_CLASSES)), bounds=(-3.0, 3.0))
SETTINGS = {
    "hidden": (16,),
    "n_rounds": 2,
    "n_neighbors": 1,
    "learning_rate": 1e-3,  # the noise hardly changes the initial embedding
    "privacy": TIGHT,
}


def random_labels(n=800):
    """Return rows with random labels: only members can have learned labels."""
    rng = np.random.default_rng(5)
    return rng.normal(size=(n, 6)), np.arange(n) % N_CLASSES, np.arange(n) // N_CLASSES % 2 == 0


def scores_of(probabilities, y, members):
    scores = loss_scores(probabilities, y)
    return scores[members], scores[~members]


def test_a_memory_reveals_members_and_a_private_network_does_not():
    """With 400 rows of each kind, an AUC of .5 errs by more than .15 with probability below 1e-7.

    An outsider has the label of its neighbor with probability 1/40; that more than 40 of 400 have
    it has a probability below 1e-10.
    """
    x, y, members = random_labels()
    owner = np.arange(800) % 2
    model = KNNPerClassifier(**SETTINGS).fit(x[members], y[members], owner[members])
    for name in ("0", "1"):
        model.clients_[name].weight = 1.0  # predictions come from the memory only

    with pytest.warns(UserWarning, match="parties= is missing"):
        network = scores_of(model.predict_proba(x), y, members)
    own_client = scores_of(model.predict_proba(x, parties=owner), y, members)
    other_client = scores_of(model.predict_proba(x, parties=1 - owner), y, members)

    allowed = largest_auc(TIGHT.total)
    assert auc(*own_client) > 0.94
    assert true_positive_rate(*own_client, 0.1) == 1.0
    assert auc(*network) < allowed + auc_margin(400, 400, confidence=1 - 1e-7)
    assert abs(auc(*network) - 0.5) < 0.15
    assert abs(auc(*other_client) - 0.5) < 0.15


@pytest.mark.slow
def test_attacks_succeed_without_a_budget_and_fail_with_one():
    """With about 250 mislabelled rows and three models, means of random scores are within .1."""
    [attacks, accuracy] = MEMBERSHIP.run(quick=True).tables

    aucs = {row[:4]: row[4] for row in attacks.rows}
    assert aucs["none", "own client", "mislabelled", "loss"] > 0.9
    assert aucs["epsilon 1", "own client", "mislabelled", "loss"] > 0.9  # the memory is not covered
    for target in ("network", "another client"):
        for attack in ("loss", "likelihood ratio"):
            assert abs(aucs["epsilon 1", target, "all", attack] - 0.5) < 0.1
    assert {row[1] for row in accuracy.rows} == set(TARGETS)
