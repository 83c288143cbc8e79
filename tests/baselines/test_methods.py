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
from fedneighbors.methods.knnper._settings import RoundSettings
from tests.baselines.clients import NAMES, NEW_X, NEW_Y, QUICK, X, Y, make_two_groups
from tests.methods.knnper.federations import OWNER

LAST_ROUND = QUICK | {"n_rounds": 1, "participation": 0.4}
GROUPS_X, GROUPS_Y, GROUPS_OWNER = make_two_groups()
GROUPS = {"hidden": (8,), "n_rounds": 20, "learning_rate": 0.2, "standardize": False}


def fit(method, **parameters):
    return method(**QUICK | parameters).fit(X, Y, parties=OWNER)


def measure_distances(client_parts, weights):
    return [float(np.linalg.norm(part - weights)) for part in client_parts.values()]


def find_idle_clients(model):
    """Return clients that took no part in a training of one round."""
    return sorted(set(NAMES) - set(model._rounds.participants(NAMES, 0)))


def test_local_training_uses_own_rows_only():
    altered_labels = Y.copy()
    altered_labels[NAMES[0] != OWNER] = 0

    plain, other = fit(LocalClassifier), LocalClassifier(**QUICK)
    other.fit(X, altered_labels, parties=OWNER)

    # the client has the same position in the batched products, so its bits are equal
    assert other.clients_[NAMES[0]].tobytes() == plain.clients_[NAMES[0]].tobytes()
    assert other.clients_[NAMES[1]].tobytes() != plain.clients_[NAMES[1]].tobytes()


def test_local_training_continues_between_rounds():
    short = fit(LocalClassifier, n_rounds=1)
    long = fit(LocalClassifier, n_rounds=9)

    assert long.score(X, Y, parties=OWNER) > short.score(X, Y, parties=OWNER) + 0.1


def test_a_later_client_of_local_training_trains_alone():
    model = fit(LocalClassifier)
    rows = NAMES[2] == OWNER
    expected = model.clients_.pop(NAMES[2])

    model.add_client(NAMES[2], X[rows], Y[rows])

    np.testing.assert_allclose(model.clients_[NAMES[2]], expected, rtol=1e-4, atol=1e-6)


def test_fedprox_without_proximal_term_equals_fedavg_bit_for_bit():
    assert (
        fit(FedProxClassifier, proximal=0.0).weights_.tobytes()
        == fit(FedAvgClassifier).weights_.tobytes()
    )


def test_a_stronger_proximal_term_moves_the_network_less():
    models = [
        fit(FedProxClassifier, proximal=mu, n_rounds=1, local_epochs=3) for mu in (0.0, 1.0, 5.0)
    ]

    start = models[0]._network.initial
    changes = [float(np.linalg.norm(model.weights_ - start)) for model in models]
    assert changes[0] > 1.2 * changes[1] > 1.2 * 1.2 * changes[2] > 0


def test_ditto_and_apfl_share_the_network_of_fedavg():
    average = fit(FedAvgClassifier, participation=0.4).weights_

    ditto = fit(DittoClassifier, participation=0.4).weights_
    mixture = fit(APFLClassifier, participation=0.4).weights_

    assert ditto.tobytes() == average.tobytes()
    np.testing.assert_allclose(mixture, average, rtol=1e-4, atol=1e-6)


def test_ditto_networks_differ_between_clients_and_from_shared():
    model = fit(DittoClassifier)

    assert len({part.tobytes() for part in model.clients_.values()}) == len(NAMES)
    assert min(measure_distances(model.clients_, model.weights_)) > 0.01


def test_ditto_without_proximal_term_trains_alone():
    ditto, local = fit(DittoClassifier, proximal=0.0), fit(LocalClassifier)

    for name in NAMES:
        assert ditto.clients_[name].tobytes() == local.clients_[name].tobytes()


def test_a_strong_proximal_term_keeps_ditto_near_fedavg():
    weak, strong = (
        fit(DittoClassifier, proximal=proximal, learning_rate=0.02, n_rounds=8)
        for proximal in (0.01, 30.0)
    )

    assert max(measure_distances(strong.clients_, strong.weights_)) < 0.1 * min(
        measure_distances(weak.clients_, weak.weights_)
    )


def test_a_later_ditto_client_is_pulled_to_the_shared_network():
    weak, strong = fit(DittoClassifier, proximal=0.0), fit(DittoClassifier, proximal=30.0)
    for model in (weak, strong):
        model.add_client("new", NEW_X, NEW_Y)

    far, near = (
        float(np.linalg.norm(model.clients_["new"] - model.weights_)) for model in (weak, strong)
    )
    assert 0 < near < 0.2 * far


@pytest.mark.parametrize("method", [DittoClassifier, APFLClassifier])
def test_absent_clients_keep_their_networks(method):
    model = method(**LAST_ROUND).fit(X, Y, parties=OWNER)

    start = model._network.initial.tobytes()
    assert len(find_idle_clients(model)) == 3
    unchanged = [name for name in NAMES if model.clients_[name].tobytes() == start]
    assert unchanged == find_idle_clients(model)


def test_mixtures_with_alpha_0_equal_fedavg():
    mixtures, average = fit(APFLClassifier, alpha=0.0), fit(FedAvgClassifier)

    np.testing.assert_allclose(
        mixtures.predict_proba(X, OWNER), average.predict_proba(X, OWNER), rtol=1e-4, atol=1e-6
    )


def test_mixtures_with_alpha_1_equal_local_training():
    mixtures, local = fit(APFLClassifier, alpha=1.0), fit(LocalClassifier)

    np.testing.assert_allclose(
        mixtures.predict_proba(X, OWNER), local.predict_proba(X, OWNER), rtol=1e-4, atol=1e-6
    )


def test_mixtures_differ_and_are_between_both_networks():
    model = fit(APFLClassifier, alpha=0.3, n_rounds=6)

    assert len({part.tobytes() for part in model.clients_.values()}) == len(NAMES)
    part = model.clients_[NAMES[0]]
    mixture = model._network_weights(part)
    np.testing.assert_allclose(mixture, 0.3 * part + 0.7 * model.weights_, rtol=1e-5, atol=1e-7)


def test_a_later_client_of_mixtures_trains_only_its_own_network():
    model = fit(APFLClassifier, alpha=0.5, tuning_epochs=20, tuning_rate=0.1)
    before = model.weights_.copy()

    model.add_client("new", NEW_X, NEW_Y)

    assert model.weights_.tobytes() == before.tobytes()
    parties = ["new"] * len(NEW_X)
    accuracy = np.mean(model.predict(NEW_X, parties) == NEW_Y)
    assert accuracy > np.mean(model.embed(NEW_X)[1].argmax(axis=1) == NEW_Y) + 0.1


@pytest.mark.parametrize("method", [FedRepClassifier, FedPerClassifier])
def test_the_body_is_trained_and_shared_and_heads_differ(method):
    model = fit(method)
    head, start = model._agreement.head, model._network.initial

    assert (model.weights_ != start)[~head].mean() > 0.9
    assert len({part.tobytes() for part in model.clients_.values()}) == len(NAMES)
    for part in model.clients_.values():
        assert part.shape == (head.sum(),)
        assert (part != start[head]).all()
        assert (model._network_weights(part)[~head] == model.weights_[~head]).all()


@pytest.mark.parametrize("method", [FedRepClassifier, FedPerClassifier])
def test_nonparticipants_keep_their_heads_until_the_last_round(method):
    model = method(**LAST_ROUND, tuning_epochs=0).fit(X, Y, parties=OWNER)
    head = model._agreement.head

    start = model._network.initial[head].tobytes()
    unchanged = [name for name in NAMES if model.clients_[name].tobytes() == start]
    assert unchanged == find_idle_clients(model)


@pytest.mark.parametrize("method", [FedRepClassifier, FedPerClassifier])
def test_the_shared_head_is_the_mean_of_heads_by_rows(method):
    model = fit(method, tuning_epochs=0)

    rows = [int((name == OWNER).sum()) for name in NAMES]
    mean = np.average([model.clients_[name] for name in NAMES], axis=0, weights=rows)
    np.testing.assert_allclose(model.weights_[model._agreement.head], mean, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("head_rate", [None, 0.2])
def test_fedrep_trains_heads_first_and_then_the_body(head_rate):
    """With one client, averaging changes nothing, and both trainings can be repeated here."""
    settings = {"tuning_epochs": 0, "head_epochs": 2, "head_learning_rate": head_rate}
    fedrep = FedRepClassifier(**QUICK | {"n_rounds": 1}, **settings).fit(X, Y)
    fedper = FedPerClassifier(**QUICK | {"n_rounds": 1}, tuning_epochs=0).fit(X, Y)

    trainer, regime = make_trainer(fedrep), fedrep._rounds.regime
    heads = trainer.network.head_names
    [(_, with_head)] = trainer.train(
        {"all": trainer.initial},
        trainer.tuning_regime(2, head_rate or regime.learning_rate),
        0,
        "head",
        only=heads,
    )
    [(_, with_body)] = trainer.train(
        {"all": with_head}, regime, 0, "body", only=trainer.network.body_names
    )

    np.testing.assert_array_equal(fedrep.clients_["all"], with_body[trainer.head])
    np.testing.assert_allclose(fedrep.weights_, with_body, rtol=1e-6, atol=1e-7)
    assert not np.allclose(fedper.weights_, fedrep.weights_)


def test_the_rate_of_heads_falls_like_that_of_the_body():
    settings = {"tuning_epochs": 0, "head_epochs": 1}
    rates = {"learning_rate": 0.02, "head_learning_rate": 0.06}
    fedrep = FedRepClassifier(**QUICK | {"n_rounds": 10} | rates, **settings)
    fedrep._rounds = RoundSettings.of(fedrep, 0)
    trainer, seen = make_trainer(fedrep), []
    trainer.train = lambda starts, regime, *_, **options: seen.append(regime) or starts.items()

    for number in (0, 6, 9):
        list(fedrep._train_round(trainer, {"all": trainer.initial}, number))

    heads, bodies = seen[::2], seen[1::2]
    np.testing.assert_allclose([r.learning_rate for r in bodies], [0.02, 0.006, 0.0018])
    np.testing.assert_allclose([r.learning_rate for r in heads], [0.06, 0.018, 0.0054])


def make_trainer(model):
    from fedneighbors.baselines._trainer import Agreement, FederatedTrainer
    from fedneighbors.tabular._ownership import Holdings

    holdings = Holdings(X, Y, {"all": slice(None)}, None)
    return FederatedTrainer(Agreement.new(model, holdings, 0, ()), holdings, model._rounds)


@pytest.mark.parametrize("method", [FedRepClassifier, FedPerClassifier])
def test_a_later_client_trains_only_its_head(method):
    model = fit(method, tuning_epochs=20, tuning_rate=0.1)
    before = model.weights_.copy()

    model.add_client("new", NEW_X, NEW_Y)

    part, head = model.clients_["new"], model._agreement.head
    assert part.shape == (head.sum(),)
    assert (part != before[head]).all()
    assert model.weights_.tobytes() == before.tobytes()


def test_clusters_group_clients_with_equal_label_meaning():
    model = ClusteredFLClassifier(**GROUPS).fit(GROUPS_X, GROUPS_Y, parties=GROUPS_OWNER)
    fedavg = FedAvgClassifier(**GROUPS).fit(GROUPS_X, GROUPS_Y, parties=GROUPS_OWNER)

    assert model.clusters_ == [("c0", "c1", "c2"), ("c3", "c4", "c5")]
    assert {name: part.tolist() for name, part in model.clients_.items()} == {
        name: [float(name > "c2")] for name in model.clients_
    }
    assert model.networks_[0].tobytes() != model.networks_[1].tobytes()
    assert model.score(GROUPS_X, GROUPS_Y, parties=GROUPS_OWNER) > 0.8
    assert fedavg.score(GROUPS_X, GROUPS_Y, parties=GROUPS_OWNER) < 0.6


def test_clusters_are_found_with_partial_participation():
    model = ClusteredFLClassifier(**GROUPS | {"participation": 0.7})

    model.fit(GROUPS_X, GROUPS_Y, parties=GROUPS_OWNER)

    assert model.clusters_ == [("c0", "c1", "c2"), ("c3", "c4", "c5")]


def test_a_later_client_gets_the_most_accurate_cluster():
    model = ClusteredFLClassifier(**GROUPS).fit(GROUPS_X, GROUPS_Y, parties=GROUPS_OWNER)
    x, y, owner = make_two_groups(2, seed=5)

    for name in ("c0", "c1"):
        model.add_client(f"new {name}", x[owner == name], y[owner == name])

    assert model.clients_["new c0"].tolist() == model.clients_["c0"].tolist() == [0]
    assert model.clients_["new c1"].tolist() == model.clients_["c5"].tolist() == [1]


@pytest.mark.parametrize("parameters", [{"tolerance": 0.0}, {"split_after": 1.0}])
def test_one_unsplit_cluster_equals_fedavg_bit_for_bit(parameters):
    model = ClusteredFLClassifier(**GROUPS, **parameters)
    model.fit(GROUPS_X, GROUPS_Y, parties=GROUPS_OWNER)

    fedavg = FedAvgClassifier(**GROUPS).fit(GROUPS_X, GROUPS_Y, parties=GROUPS_OWNER)
    assert len(model.clusters_) == 1
    assert model.weights_.tobytes() == fedavg.weights_.tobytes()


def test_a_split_separates_opposite_directions_of_any_length():
    changes = np.array([[1.0, 0.1], [-9.0, 0.0], [50.0, 0.0], [-0.1, 0.01]])

    assert bipartition(changes).tolist() == [False, True, False, True]
    assert bipartition(-changes).tolist() == [False, True, False, True]
    assert bipartition(np.array([[1.0, 0.0], [0.0, 0.0]])).tolist() == [False, True]


def test_large_changes_that_cancel_split_clients():
    changes = np.array([[1.0, 0.0], [-1.0, 0.0]])

    assert is_split_needed(changes, [5, 5], tolerance=0.01)
    assert not is_split_needed(changes, [8, 2], tolerance=0.5)
    assert is_split_needed(changes, [8, 2], tolerance=0.61)
    assert not is_split_needed(np.zeros((2, 2)), [5, 5], tolerance=0.5)


def test_a_later_client_trains_at_the_last_rounds_rate():
    """With the rate of the first round, Ditto was less accurate than the shared model."""
    model = fit(DittoClassifier, tuning_epochs=3)
    last_rate = model._rounds.learning_rate(model._rounds.n_rounds - 1)
    explicit = fit(DittoClassifier, tuning_epochs=3, tuning_rate=last_rate)

    model.add_client("new", NEW_X, NEW_Y)
    explicit.add_client("new", NEW_X, NEW_Y)

    assert last_rate < model.learning_rate / 2
    assert model.clients_["new"].tobytes() == explicit.clients_["new"].tobytes()


@pytest.mark.parametrize("method", [FedRepClassifier, FedPerClassifier])
def test_a_later_client_trains_its_head_before_tuning(method):
    """Without tuning epochs, it would otherwise predict with the mean of the other heads."""
    model = fit(method, tuning_epochs=0)

    model.add_client("new", NEW_X, NEW_Y)

    assert model._rounds.rates() == [(0.1, 2 / 3), (pytest.approx(0.03), 1 / 3)]
    probabilities = model.predict_proba(NEW_X, parties=["new"] * len(NEW_X))
    with pytest.warns(UserWarning, match="are unknown"):
        shared = model.predict_proba(NEW_X, parties=["nobody"] * len(NEW_X))
    true_cells = np.arange(len(NEW_Y)), np.searchsorted(model.classes_, NEW_Y)
    assert probabilities[true_cells].mean() > shared[true_cells].mean() + 0.01
    repeated = fit(method, tuning_epochs=0).add_client("new", NEW_X, NEW_Y)
    assert repeated.clients_["new"].tobytes() == model.clients_["new"].tobytes()
