import pickle

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedneighbors import ProbabilisticNeuralNetwork
from fedneighbors.methods.fedpnn import _network as network

ACTIVATIONS = ["gaussian", "logistic", "cauchy"]
# scikit-learn checks that fail by design, with the reason; none at present.
EXPECTED_FAILURES: dict[str, str] = {}


@parametrize_with_checks(
    [ProbabilisticNeuralNetwork(), ProbabilisticNeuralNetwork(0.3, "cauchy", "empirical")],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)
def test_network_passes_the_scikit_learn_checks(estimator, check):
    check(estimator)


def compute_kernel(u, activation):
    if activation == "gaussian":
        return np.exp(-(u**2) / 2)
    if activation == "logistic":
        return 1 / (np.exp(u) + 2 + np.exp(-u))
    return 1 / (1 + u**2)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("priors", ["equal", "empirical", [0.2, 0.5, 0.3]])
def test_probabilities_match_equation_1_and_bayes(activation, priors):
    rng = np.random.default_rng(0)
    patterns, y, x = rng.random((30, 4)), np.arange(30) % 7 % 3, rng.random((12, 4))
    model = ProbabilisticNeuralNetwork(0.2, activation, priors).fit(patterns, y)

    probabilities = model.predict_proba(x)

    distances = np.sqrt(((x[:, None] - patterns) ** 2).mean(axis=2))
    densities = np.stack(
        [compute_kernel(distances[:, y == k] / 0.2, activation).mean(axis=1) for k in range(3)],
        axis=1,
    )
    prior_values = {"equal": np.full(3, 1 / 3), "empirical": np.bincount(y) / 30}
    joint = densities * (prior_values[priors] if isinstance(priors, str) else np.array(priors))
    expected = joint / joint.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-10)
    assert model.predict(x).tolist() == expected.argmax(axis=1).tolist()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_probabilities_with_500_features_and_small_sigma(activation):
    rng = np.random.default_rng(0)
    model = ProbabilisticNeuralNetwork(1e-3, activation)
    model.fit(rng.random((60, 500)), np.arange(60) % 4)

    probabilities = model.predict_proba(rng.random((20, 500)))

    assert np.isfinite(probabilities).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)


def test_row_too_far_for_a_float_gets_the_priors():
    model = ProbabilisticNeuralNetwork(0.1, priors=[0.25, 0.75]).fit([[0.0], [1.0]], ["a", "b"])

    probabilities = model.predict_proba([[1e200]])

    np.testing.assert_allclose(probabilities, [[0.25, 0.75]], rtol=1e-15)
    assert model.predict([[1e200]]).tolist() == ["b"]


def test_class_with_prior_0_is_never_predicted():
    model = ProbabilisticNeuralNetwork(0.1, priors=[0, 1]).fit([[0.0], [1.0]], ["a", "b"])

    assert model.predict([[0.0]]).tolist() == ["b"]
    assert model.predict_proba([[0.0]]).tolist() == [[0.0, 1.0]]


def test_ties_go_to_the_lower_class():
    model = ProbabilisticNeuralNetwork(0.5).fit([[-1.0], [1.0]], ["late", "early"])

    assert model.predict([[0.0]]).tolist() == ["early"]
    assert model.predict_proba([[0.0]]).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_sigma_minimizes_the_leave_one_out_loss(activation):
    x, y = load_wine(return_X_y=True)
    x = MinMaxScaler().fit_transform(x)

    model = ProbabilisticNeuralNetwork(activation=activation).fit(x, y)

    assert model.losses_.shape == model.sigmas_.shape == (20,)
    assert model.losses_[model.sigmas_.tolist().index(model.sigma_)] == model.losses_.min()
    expected = []
    for row in range(0, len(x), 10):
        others = np.arange(len(x)) != row
        refitted = ProbabilisticNeuralNetwork(model.sigma_, activation).fit(x[others], y[others])
        expected.append(-refitted.predict_log_proba(x[row : row + 1])[0, y[row]])
    losses = [
        network.leave_one_out_losses(
            x[[row]],
            y[[row]],
            x,
            np.eye(3, dtype=np.int64)[y],
            assigned=np.array([row]),
            sigmas=np.array([model.sigma_]),
            activation=activation,
        )[0]
        for row in range(0, len(x), 10)
    ]
    np.testing.assert_allclose(losses, expected, rtol=1e-9, atol=1e-12)


def test_chosen_sigma_scales_with_the_columns():
    x, y = load_wine(return_X_y=True)
    x = MinMaxScaler().fit_transform(x)

    small, large = (ProbabilisticNeuralNetwork().fit(x * unit, y) for unit in (1.0, 1024.0))

    assert large.sigma_ == small.sigma_ * 1024
    assert (large.predict(x * 1024) == small.predict(x)).all()


def test_sigma_of_large_tables_uses_evenly_spaced_rows(monkeypatch):
    monkeypatch.setattr(network, "MAX_SIGMA_ROWS", 50)
    x, y = load_breast_cancer(return_X_y=True)
    x = MinMaxScaler().fit_transform(x)

    model = ProbabilisticNeuralNetwork().fit(x, y)

    assert model.losses_.max() <= 50 * 20
    assert np.mean(model.predict(x) == y) > 0.9


def test_network_works_in_pipelines_and_grid_search():
    x, y = load_breast_cancer(return_X_y=True)
    pipeline = make_pipeline(MinMaxScaler(), ProbabilisticNeuralNetwork())

    scores = cross_val_score(pipeline, x, y, cv=5)
    grid = GridSearchCV(
        pipeline, {"probabilisticneuralnetwork__activation": ACTIVATIONS}, cv=3
    ).fit(x, y)

    assert scores.mean() > 0.94
    assert grid.best_score_ > 0.94


def test_single_training_row_predicts_its_class():
    model = ProbabilisticNeuralNetwork().fit([[1.0, 2.0]], ["only"])

    assert model.predict([[5.0, 5.0]]).tolist() == ["only"]
    assert model.predict_proba([[5.0, 5.0]]).tolist() == [[1.0]]


def test_constant_columns_give_finite_probabilities():
    rng = np.random.default_rng(0)
    x, y = np.column_stack([rng.random(40), np.full(40, 5.0)]), np.arange(40) % 2

    model = ProbabilisticNeuralNetwork().fit(x, y)
    constant = ProbabilisticNeuralNetwork().fit(np.full((6, 2), 3.0), [0, 0, 0, 1, 1, 1])

    assert np.isfinite(model.predict_proba(x)).all()
    assert constant.predict_proba([[3.0, 3.0]]).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("call", ["fit", "predict"])
def test_non_finite_values_are_rejected(bad, call):
    model = ProbabilisticNeuralNetwork(0.1).fit([[0.0], [1.0]], [0, 1])
    arguments = ([[0.0], [bad]], [0, 1])[: 2 if call == "fit" else 1]

    with pytest.raises(ValueError, match=r"NaN|infinity"):
        getattr(model, call)(*arguments)


def test_pickled_network_predicts_the_same():
    x, y = load_wine(return_X_y=True)
    model = ProbabilisticNeuralNetwork(n_jobs=2).fit(x, y)

    copy = pickle.loads(pickle.dumps(model))  # noqa: S301 - written a line above

    assert (copy.predict_proba(x) == model.predict_proba(x)).all()


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"sigma": 0}, ValueError, "expected a finite sigma above 0"),
        ({"sigma": np.inf}, ValueError, "expected a finite sigma above 0"),
        ({"sigma": "auto"}, TypeError, "expected sigma as a number or 'loo'"),
        ({"sigma": True}, TypeError, "expected sigma as a number or 'loo'"),
        ({"activation": "relu"}, ValueError, "expected activation as one of"),
        ({"priors": "none"}, ValueError, "expected priors as 'equal', 'empirical' or an array"),
        ({"priors": None}, ValueError, "expected priors as 'equal', 'empirical' or an array"),
        ({"priors": [1.0]}, ValueError, "expected 2 priors of at least 0"),
        ({"priors": [-0.5, 1.5]}, ValueError, "expected 2 priors of at least 0"),
        ({"priors": [0.5, 0.6]}, ValueError, "expected priors that sum to 1"),
    ],
)
def test_invalid_settings_are_rejected_at_fit(settings, error, words):
    with pytest.raises(error, match=words):
        ProbabilisticNeuralNetwork(**settings).fit([[0.0], [1.0]], [0, 1])


def test_predict_before_fit_raises():
    with pytest.raises(NotFittedError):
        ProbabilisticNeuralNetwork().predict([[0.0]])
