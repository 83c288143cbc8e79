"""FedProto and pFedFDA equal the formulas of their papers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax
from sklearn.model_selection import StratifiedKFold
from torch import nn

from fedneighbors.baselines import FedProtoClassifier, LocalClassifier, PFedFDAClassifier
from fedneighbors.baselines._class_means import (
    Gaussians,
    Prototypes,
    adapt,
    class_priors,
    sum_classes,
)
from fedneighbors.baselines._linear_head import PrototypeLoss
from fedneighbors.neural._network import Network
from tests.baselines.clients import NAMES, QUICK, X, Y
from tests.methods.knnper.federations import OWNER
from tests.naive import class_means as naive

CLASSES = 4


@st.composite
def clients(draw, min_rows=1):
    """Return pairs of embeddings and labels of three classes; the fourth has no row."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = draw(st.lists(st.integers(min_rows, 12), min_size=1, max_size=4))
    n_dimensions = draw(st.integers(1, 3))
    return [(rng.normal(size=(n, n_dimensions)), rng.integers(3, size=n)) for n in sizes]


def as_lists(parts):
    return [(points.tolist(), labels.tolist()) for points, labels in parts]


@settings(max_examples=50, deadline=None)
@given(clients())
def test_prototypes_are_means_weighted_by_rows_of_the_class(parts):
    found = Prototypes.average(sum_classes(*part, CLASSES) for part in parts)

    expected = naive.prototypes(as_lists(parts), CLASSES)
    assert found.is_known.tolist() == [each is not None for each in expected]
    for mean, other in zip(found.means, expected, strict=True):
        np.testing.assert_allclose(mean, 0 * mean if other is None else other, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(clients())
def test_the_head_of_prototypes_prefers_the_nearest(parts):
    prototypes = Prototypes.average(sum_classes(*part, CLASSES) for part in parts)
    coefficients, intercepts = prototypes.head()

    for point in parts[0][0]:
        scores = log_softmax(coefficients @ point + intercepts)
        distances = [naive.squared_distance(point, mean) for mean in prototypes.means]
        known = np.flatnonzero(prototypes.is_known)
        expected = log_softmax(-np.array(distances)[known])
        np.testing.assert_allclose(scores[known], expected, atol=1e-9)
        assert (np.exp(scores[~prototypes.is_known]) == 0).all()
    assert (Prototypes.of_head(coefficients, intercepts).means == prototypes.means).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_of_prototypes_matches_naive_version(seed):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, CLASSES)).double()
    network = Network(module, "1", ("2",))
    rng = np.random.default_rng(seed)
    x, y, weights = rng.normal(size=(6, 3)), rng.integers(CLASSES, size=6), rng.random(6)
    means, is_known = rng.normal(size=(CLASSES, 2)), np.arange(CLASSES) > 0
    state = network.state(network.initial)

    loss = PrototypeLoss(means, 3.0 * is_known)
    found = loss(network, state, *map(torch.from_numpy, (x, y, weights)))

    points, scores = network.embed(state, torch.from_numpy(x))
    listed = [mean.tolist() if known else None for mean, known in zip(means, is_known, strict=True)]
    arguments = (scores.tolist(), points.tolist(), y.tolist(), weights.tolist())
    assert float(found) == pytest.approx(naive.prototype_loss(*arguments, listed, 3.0), rel=1e-12)


def test_fedproto_without_prototypes_trains_bodies_alone():
    fedproto = FedProtoClassifier(**QUICK, strength=0.0).fit(X, Y, parties=OWNER)
    local = LocalClassifier(**QUICK).fit(X, Y, parties=OWNER)

    body = ~local._agreement.head
    for name in NAMES:
        own, expected = (model.clients_[name][body] for model in (fedproto, local))
        np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-6)


def test_fedproto_predicts_the_nearest_prototype_of_all_clients():
    model = FedProtoClassifier(**QUICK).fit(X, Y, parties=OWNER)

    embeddings = {}
    for name in NAMES:
        state = model._network.state(model.clients_[name])
        embeddings[name] = model._network.embed(state, model._agreement.tensor(X))[0].numpy()
    parts = [
        (embeddings[name][name == OWNER].tolist(), Y[name == OWNER].tolist()) for name in NAMES
    ]
    means = naive.prototypes(parts, 10)
    for name in NAMES:
        distances = [[naive.squared_distance(z, m) for m in means] for z in embeddings[name][:30]]
        predicted = model.predict(X[:30], [name] * 30)
        assert predicted.tolist() == np.argmin(distances, axis=1).tolist()


def test_a_strong_loss_draws_embeddings_to_prototypes():
    spreads = []
    for strength in (0.0, 10.0):
        model = FedProtoClassifier(**QUICK, strength=strength).fit(X, Y, parties=OWNER)
        means = Prototypes.of_head(*model_head(model)).means
        squares = []
        for name in NAMES:
            state = model._network.state(model.clients_[name])
            rows = name == OWNER
            points = model._network.embed(state, model._agreement.tensor(X[rows]))[0].numpy()
            squares += ((points - means[Y[rows]]) ** 2).sum(axis=1).tolist()
        spreads.append(np.mean(squares))

    assert spreads[1] < 0.7 * spreads[0]


def model_head(model):
    """Return coefficients and intercepts of a model's shared head."""
    state = model._network.state(model.weights_)
    return tuple(state[f"head.{part}"].numpy().astype(float) for part in ("weight", "bias"))


@settings(max_examples=50, deadline=None)
@given(clients())
def test_estimated_gaussians_match_naive_version(parts):
    fallback = np.arange(CLASSES * parts[0][0].shape[1], dtype=float).reshape(CLASSES, -1)
    for points, labels in parts:
        found = Gaussians.estimate(points, labels, fallback)

        means, covariance = naive.estimate(points.tolist(), labels.tolist(), fallback.tolist())
        np.testing.assert_allclose(found.means, means, atol=1e-12)
        np.testing.assert_allclose(found.covariance, covariance, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(clients(), st.floats(0, 1))
def test_the_discriminants_are_posteriors_of_the_mixture(parts, beta):
    (points, labels), n_dimensions = parts[0], parts[0][0].shape[1]
    shared = Gaussians(np.ones((CLASSES, n_dimensions)), 2 * np.eye(n_dimensions))
    own = Gaussians.estimate(points, labels, shared.means)
    priors = class_priors(labels, CLASSES)

    coefficients, intercepts = own.mix(shared, beta).head(priors)

    np.testing.assert_allclose(priors, naive.priors(labels.tolist(), CLASSES), rtol=1e-12)
    means = beta * own.means + (1 - beta) * shared.means
    covariance = beta * own.covariance + (1 - beta) * shared.covariance
    for point in points:
        expected = log_softmax(naive.log_posteriors(point, means, covariance, priors))
        found = log_softmax(coefficients @ point + intercepts)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("distance", "least", "most"), [(0.0, 0.0, 0.4), (6.0, 0.5, 1.0)])
def test_a_client_that_differs_uses_more_of_its_own_means(distance, least, most):
    rng = np.random.default_rng(0)
    labels = np.arange(24) % 3
    centers = 2 * rng.normal(size=(3, 4))
    shared = Gaussians(centers, 2 * np.eye(4))
    points = centers[(labels + (distance > 0)) % 3] + rng.normal(size=(24, 4))

    mixture = adapt(points, labels, shared, seed=5)

    own = Gaussians.estimate(points, labels, centers)
    beta = ((mixture.means - centers) / (own.means - centers)).mean()
    np.testing.assert_allclose(mixture.means, own.mix(shared, beta).means)
    assert least <= beta <= most
    grid = np.linspace(0, 1, 41)
    losses = [cross_validate(points, labels, shared, b) for b in [beta, *grid]]
    assert losses[0] <= min(losses[1:]) * 1.001


def cross_validate(points, labels, shared, beta):
    """Return the loss of a weight by the naive version."""
    priors, loss = naive.priors(labels.tolist(), len(shared.means)), 0.0
    folds = StratifiedKFold(2, shuffle=True, random_state=5)
    for train, test in folds.split(points, labels):
        means, covariance = naive.estimate(points[train], labels[train], shared.means)
        means = beta * np.array(means) + (1 - beta) * shared.means
        covariance = beta * np.array(covariance) + (1 - beta) * shared.covariance
        for point, label in zip(points[test], labels[test], strict=True):
            logs = log_softmax(naive.log_posteriors(point, means, covariance, priors))
            loss -= logs[label] / len(test)
    return loss


def test_a_client_of_one_row_of_each_class_uses_the_shared_means():
    shared = Gaussians(np.ones((2, 3)), np.eye(3))

    assert adapt(np.zeros((2, 3)), np.array([0, 1]), shared, seed=0) is shared


def test_pfedfda_heads_are_discriminants_of_own_embeddings():
    model = PFedFDAClassifier(**QUICK).fit(X, Y, parties=OWNER)

    state = model._network.state(model.weights_)
    for name in NAMES[:3]:
        points = model._network.embed(state, model._agreement.tensor(X[name == OWNER]))[0]
        points, labels = points.numpy().astype(float), Y[name == OWNER]
        mixture = adapt(points, labels, model.distribution_, seed=model._rounds.seed % 2**32)
        coefficients, intercepts = mixture.head(class_priors(labels, 10))
        expected = log_softmax(points @ coefficients.T + intercepts, axis=1)
        found = model.predict_proba(X[name == OWNER], [name] * len(labels))
        np.testing.assert_allclose(found, np.exp(expected), atol=1e-4)


def test_shared_gaussians_are_means_weighted_by_rows():
    parts = [Gaussians(np.full((2, 1), k), np.full((1, 1), 10.0 * k)) for k in (1.0, 4.0)]

    average = Gaussians.average(parts, [2, 1])

    assert average.means.tolist() == [[2.0], [2.0]]
    assert average.covariance.tolist() == [[20.0]]


@pytest.mark.parametrize("method", [FedProtoClassifier, PFedFDAClassifier])
def test_a_head_of_two_layers_is_refused(method):
    module = nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 10))

    with pytest.raises(ValueError, match="head is one linear layer"):
        method(module, embedding="0", head=("1", "2"), n_rounds=1).fit(X, Y, parties=OWNER)
