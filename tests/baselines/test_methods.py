"""Each baseline implements its paper."""

import numpy as np
import pytest

from fedneighbors.baselines import (
    APFLClassifier,
    ClusteredFLClassifier,
    DittoClassifier,
    FedAvgClassifier,
    FedPerClassifier,
    FedProxClassifier,
    FedRepClassifier,
    LocalClassifier,
)
from fedneighbors.baselines._clustered import bipartition, is_split_needed
from tests.baselines.clients import NAMES, NEW_X, NEW_Y, QUICK, X, Y, two_groups
from tests.methods.knnper.federations import OWNER

LAST_ROUND = QUICK | {"n_rounds": 1, "participation": 0.4}
GROUPS_X, GROUPS_Y, GROUPS_OWNER = two_groups()
GROUPS = {"hidden": (8,), "n_rounds": 20, "learning_rate": 0.2, "standardize": False}


def fitted(method, **changed):
    return method(**QUICK | changed).fit(X, Y, parties=OWNER)


def distances(client_parts, weights):
    return [float(np.linalg.norm(own - weights)) for own in client_parts.values()]


def idle(found):
    """Return clients that took no part in a training of one round."""
    return sorted(set(NAMES) - set(found._rounds.participants(NAMES, 0)))


def test_local_training_uses_own_rows_only():
    altered_labels = Y.copy()
    altered_labels[NAMES[0] != OWNER] = 0

    plain, other = fitted(LocalClassifier), LocalClassifier(**QUICK)
    other.fit(X, altered_labels, parties=OWNER)

    # the batched products of the other clients are next to it, in the same places
    assert other.clients_[NAMES[0]].tobytes() == plain.clients_[NAMES[0]].tobytes()
    assert other.clients_[NAMES[1]].tobytes() != plain.clients_[NAMES[1]].tobytes()


def test_local_training_continues_between_rounds():
    short = fitted(LocalClassifier, n_rounds=1)
    long = fitted(LocalClassifier, n_rounds=9)

    assert long.score(X, Y, parties=OWNER) > short.score(X, Y, parties=OWNER) + 0.1


def test_a_later_client_of_local_training_trains_alone():
    found = fitted(LocalClassifier)
    rows = NAMES[2] == OWNER
    kept = found.clients_.pop(NAMES[2])

    found.add_client(NAMES[2], X[rows], Y[rows])

    np.testing.assert_allclose(found.clients_[NAMES[2]], kept, rtol=1e-4, atol=1e-6)


def test_fedprox_without_proximal_term_equals_fedavg_bit_for_bit():
    assert (
        fitted(FedProxClassifier, proximal=0.0).weights_.tobytes()
        == fitted(FedAvgClassifier).weights_.tobytes()
    )


def test_a_stronger_proximal_term_moves_the_network_less():
    found = [
        fitted(FedProxClassifier, proximal=mu, n_rounds=1, local_epochs=3) for mu in (0.0, 1.0, 5.0)
    ]

    start = found[0]._network.initial
    moved = [float(np.linalg.norm(each.weights_ - start)) for each in found]
    assert moved[0] > 1.2 * moved[1] > 1.2 * 1.2 * moved[2] > 0


def test_the_shared_network_is_that_of_fedavg_for_all_methods():
    average = fitted(FedAvgClassifier, participation=0.4).weights_

    ditto = fitted(DittoClassifier, participation=0.4).weights_
    mixture = fitted(APFLClassifier, participation=0.4).weights_

    assert ditto.tobytes() == average.tobytes()
    np.testing.assert_allclose(mixture, average, rtol=1e-4, atol=1e-6)


def test_ditto_networks_differ_between_clients_and_from_shared():
    found = fitted(DittoClassifier)

    assert len({own.tobytes() for own in found.clients_.values()}) == len(NAMES)
    assert min(distances(found.clients_, found.weights_)) > 0.01


def test_ditto_without_proximal_term_trains_alone():
    ditto, alone = fitted(DittoClassifier, proximal=0.0), fitted(LocalClassifier)

    for name in NAMES:
        assert ditto.clients_[name].tobytes() == alone.clients_[name].tobytes()


def test_a_strong_proximal_term_keeps_ditto_near_fedavg():
    weak, strong = (
        fitted(DittoClassifier, proximal=pull, learning_rate=0.02, n_rounds=8)
        for pull in (0.01, 30.0)
    )

    assert max(distances(strong.clients_, strong.weights_)) < 0.1 * min(
        distances(weak.clients_, weak.weights_)
    )


def test_a_later_ditto_client_is_pulled_to_the_shared_network():
    free, held = fitted(DittoClassifier, proximal=0.0), fitted(DittoClassifier, proximal=30.0)
    for found in (free, held):
        found.add_client("new", NEW_X, NEW_Y)

    far, near = (
        float(np.linalg.norm(found.clients_["new"] - found.weights_)) for found in (free, held)
    )
    assert 0 < near < 0.2 * far


@pytest.mark.parametrize("method", [DittoClassifier, APFLClassifier])
def test_absent_clients_keep_their_networks(method):
    found = method(**LAST_ROUND).fit(X, Y, parties=OWNER)

    start = found._network.initial.tobytes()
    assert len(idle(found)) == 3
    assert [name for name in NAMES if found.clients_[name].tobytes() == start] == idle(found)


def test_mixtures_without_own_share_equal_fedavg():
    found, average = fitted(APFLClassifier, alpha=0.0), fitted(FedAvgClassifier)

    np.testing.assert_allclose(
        found.predict_proba(X, OWNER), average.predict_proba(X, OWNER), rtol=1e-4, atol=1e-6
    )


def test_full_own_mixtures_equal_local_training():
    found, alone = fitted(APFLClassifier, alpha=1.0), fitted(LocalClassifier)

    np.testing.assert_allclose(
        found.predict_proba(X, OWNER), alone.predict_proba(X, OWNER), rtol=1e-4, atol=1e-6
    )


def test_mixtures_differ_and_are_between_both_networks():
    found = fitted(APFLClassifier, alpha=0.3, n_rounds=6)

    assert len({own.tobytes() for own in found.clients_.values()}) == len(NAMES)
    own = found.clients_[NAMES[0]]
    whole = found._network_weights(own)
    np.testing.assert_allclose(whole, 0.3 * own + 0.7 * found.weights_, rtol=1e-5, atol=1e-7)


def test_a_later_client_of_mixtures_trains_only_its_own_network():
    found = fitted(APFLClassifier, alpha=0.5, tuning_epochs=20, tuning_rate=0.1)
    before = found.weights_.copy()

    found.add_client("new", NEW_X, NEW_Y)

    assert found.weights_.tobytes() == before.tobytes()
    asked = ["new"] * len(NEW_X)
    right = np.mean(found.predict(NEW_X, asked) == NEW_Y)
    assert right > np.mean(found.embed(NEW_X)[1].argmax(axis=1) == NEW_Y) + 0.1


@pytest.mark.parametrize("method", [FedRepClassifier, FedPerClassifier])
def test_the_body_is_trained_and_shared_and_heads_differ(method):
    found = fitted(method)
    head, start = found._agreement.head, found._network.initial

    assert (found.weights_ != start)[~head].mean() > 0.9
    assert len({own.tobytes() for own in found.clients_.values()}) == len(NAMES)
    for own in found.clients_.values():
        assert own.shape == (head.sum(),)
        assert (own != start[head]).all()
        assert (found._network_weights(own)[~head] == found.weights_[~head]).all()


@pytest.mark.parametrize("method", [FedRepClassifier, FedPerClassifier])
def test_nonparticipants_keep_their_heads_until_the_last_round(method):
    found = method(**LAST_ROUND, tuning_epochs=0).fit(X, Y, parties=OWNER)
    head = found._agreement.head

    start = found._network.initial[head].tobytes()
    assert [name for name in NAMES if found.clients_[name].tobytes() == start] == idle(found)


@pytest.mark.parametrize("method", [FedRepClassifier, FedPerClassifier])
def test_the_shared_head_is_the_mean_of_heads_by_rows(method):
    found = fitted(method, tuning_epochs=0)

    rows = [int((name == OWNER).sum()) for name in NAMES]
    mean = np.average([found.clients_[name] for name in NAMES], axis=0, weights=rows)
    np.testing.assert_allclose(found.weights_[found._agreement.head], mean, rtol=1e-5, atol=1e-7)


def test_fedrep_trains_heads_first_and_then_the_body():
    """With one client, averaging changes nothing, and both trainings can be repeated here."""
    found = FedRepClassifier(**QUICK | {"n_rounds": 1}, tuning_epochs=0, head_epochs=2)
    found.fit(X, Y)
    twin = FedPerClassifier(**QUICK | {"n_rounds": 1}, tuning_epochs=0).fit(X, Y)

    trainer, regime = trainer_of(found), found._rounds.regime
    heads = trainer.network.head_names
    [(_, first)] = trainer.train(
        {"all": trainer.initial},
        trainer.tuning_regime(2, regime.learning_rate),
        0,
        "head",
        only=heads,
    )
    [(_, then)] = trainer.train({"all": first}, regime, 0, "body", only=trainer.network.body_names)

    np.testing.assert_array_equal(found.clients_["all"], then[trainer.head])
    np.testing.assert_allclose(found.weights_, then, rtol=1e-6, atol=1e-7)
    assert not np.allclose(twin.weights_, found.weights_)


def trainer_of(found):
    from fedneighbors.baselines._trainer import Agreement, FederatedTrainer
    from fedneighbors.tabular._ownership import Holdings

    holdings = Holdings(X, Y, {"all": slice(None)}, None)
    return FederatedTrainer(Agreement.new(found, holdings, 0, ()), holdings, found._rounds)


@pytest.mark.parametrize("method", [FedRepClassifier, FedPerClassifier])
def test_a_later_client_of_heads_trains_only_a_head(method):
    found = fitted(method, tuning_epochs=20, tuning_rate=0.1)
    before = found.weights_.copy()

    found.add_client("new", NEW_X, NEW_Y)

    own, head = found.clients_["new"], found._agreement.head
    assert own.shape == (head.sum(),)
    assert (own != before[head]).all()
    assert found.weights_.tobytes() == before.tobytes()


def test_clusters_group_clients_with_equal_label_meaning():
    found = ClusteredFLClassifier(**GROUPS).fit(GROUPS_X, GROUPS_Y, parties=GROUPS_OWNER)
    whole = FedAvgClassifier(**GROUPS).fit(GROUPS_X, GROUPS_Y, parties=GROUPS_OWNER)

    assert found.clusters_ == [("c0", "c1", "c2"), ("c3", "c4", "c5")]
    assert {name: own.tolist() for name, own in found.clients_.items()} == {
        name: [float(name > "c2")] for name in found.clients_
    }
    assert found.networks_[0].tobytes() != found.networks_[1].tobytes()
    asked = {"parties": GROUPS_OWNER}
    assert found.score(GROUPS_X, GROUPS_Y, **asked) > 0.8
    assert whole.score(GROUPS_X, GROUPS_Y, **asked) < 0.6


def test_clusters_are_found_with_partial_participation():
    found = ClusteredFLClassifier(**GROUPS | {"participation": 0.7})

    found.fit(GROUPS_X, GROUPS_Y, parties=GROUPS_OWNER)

    assert found.clusters_ == [("c0", "c1", "c2"), ("c3", "c4", "c5")]


def test_a_later_client_gets_the_most_accurate_cluster():
    found = ClusteredFLClassifier(**GROUPS).fit(GROUPS_X, GROUPS_Y, parties=GROUPS_OWNER)
    x, y, owner = two_groups(2, seed=5)

    for name in ("c0", "c1"):
        found.add_client(f"new {name}", x[owner == name], y[owner == name])

    assert found.clients_["new c0"].tolist() == found.clients_["c0"].tolist() == [0]
    assert found.clients_["new c1"].tolist() == found.clients_["c5"].tolist() == [1]


@pytest.mark.parametrize("never", [{"tolerance": 0.0}, {"split_after": 1.0}])
def test_one_unsplit_cluster_equals_fedavg_bit_for_bit(never):
    found = ClusteredFLClassifier(**GROUPS, **never)
    found.fit(GROUPS_X, GROUPS_Y, parties=GROUPS_OWNER)

    whole = FedAvgClassifier(**GROUPS).fit(GROUPS_X, GROUPS_Y, parties=GROUPS_OWNER)
    assert len(found.clusters_) == 1
    assert found.weights_.tobytes() == whole.weights_.tobytes()


def test_a_split_separates_opposite_directions_of_any_length():
    changes = np.array([[1.0, 0.1], [-9.0, 0.0], [50.0, 0.0], [-0.1, 0.01]])

    assert bipartition(changes).tolist() == [False, True, False, True]
    assert bipartition(-changes).tolist() == [False, True, False, True]
    assert bipartition(np.array([[1.0, 0.0], [0.0, 0.0]])).tolist() == [False, True]


def test_large_changes_that_cancel_split_clients():
    apart = np.array([[1.0, 0.0], [-1.0, 0.0]])

    assert is_split_needed(apart, [5, 5], tolerance=0.01)
    assert not is_split_needed(apart, [8, 2], tolerance=0.5)
    assert is_split_needed(apart, [8, 2], tolerance=0.61)
    assert not is_split_needed(np.zeros((2, 2)), [5, 5], tolerance=0.5)


def test_a_later_client_trains_at_the_last_rounds_rate():
    """With the rate of the first round, Ditto was less accurate than the shared model."""
    found = fitted(DittoClassifier, tuning_epochs=3)
    last = found._rounds.learning_rate(found._rounds.n_rounds - 1)
    explicit = fitted(DittoClassifier, tuning_epochs=3, tuning_rate=last)

    found.add_client("new", NEW_X, NEW_Y)
    explicit.add_client("new", NEW_X, NEW_Y)

    assert last < found.learning_rate / 2
    assert found.clients_["new"].tobytes() == explicit.clients_["new"].tobytes()


@pytest.mark.parametrize("method", [FedRepClassifier, FedPerClassifier])
def test_a_later_client_makes_its_head_before_tuning(method):
    """Without tuning epochs, it would otherwise predict with the mean of the other heads."""
    found = fitted(method, tuning_epochs=0)

    found.add_client("new", NEW_X, NEW_Y)

    assert found._rounds.schedule() == [(0.1, 2 / 3), (pytest.approx(0.03), 1 / 3)]
    own = found.predict_proba(NEW_X, parties=["new"] * len(NEW_X))
    with pytest.warns(UserWarning, match="are unknown"):
        mean = found.predict_proba(NEW_X, parties=["nobody"] * len(NEW_X))
    truth = np.arange(len(NEW_Y)), np.searchsorted(found.classes_, NEW_Y)
    assert own[truth].mean() > mean[truth].mean() + 0.01
    again = fitted(method, tuning_epochs=0).add_client("new", NEW_X, NEW_Y)
    assert again.clients_["new"].tobytes() == found.clients_["new"].tobytes()
