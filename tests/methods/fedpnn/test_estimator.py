"""FedPNNClassifier as a scikit-learn estimator, on one table and over a federation."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedneighbors import FedPNNClassifier
from fedneighbors.errors import DataError, ModelFileError
from fedneighbors.metrics import balanced_accuracy

X, Y = load_wine(return_X_y=True)
OWNERS = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")

# scikit-learn checks that fail by design, with the reason.
EXPECTED_FAILURES = {
    "check_fit2d_1feature": "only one class of its ten rows has min_count rows; the error is about "
    "that, not about the single column",
}


@parametrize_with_checks([FedPNNClassifier()], expected_failed_checks=lambda _: EXPECTED_FAILURES)
def test_classifier_passes_the_scikit_learn_checks(estimator, check):
    check(estimator)


def test_wine_is_classified_in_cross_validation():
    assert cross_val_score(FedPNNClassifier(), X, Y, cv=5).mean() > 0.95


def test_one_party_equals_no_parties():
    without = FedPNNClassifier().fit(X, Y)
    with_one = FedPNNClassifier().fit(X, Y, parties=["only"] * len(Y))

    assert without.model_.to_bytes() == with_one.model_.to_bytes()


@pytest.mark.parametrize(
    "labels",
    [np.array(["a", "b", "c"]), np.array([-1, 5, 9]), np.array([0.0, 3.0, 4.0])],
)
def test_labels_of_any_kind_are_predicted(labels, tmp_path):
    model = FedPNNClassifier().fit(X, labels[Y], parties=OWNERS)
    model.save(tmp_path / "model")

    loaded = FedPNNClassifier.load(tmp_path / "model")

    assert model.classes_.tolist() == labels.tolist()
    assert (loaded.predict(X) == model.predict(X)).all()
    assert (loaded.predict_proba(X) == model.predict_proba(X)).all()
    assert loaded.predict(X).dtype.kind == labels.dtype.kind


def test_damaged_model_file_is_rejected(tmp_path):
    FedPNNClassifier().fit(X, Y).save(tmp_path / "model")
    raw = bytearray((tmp_path / "model").read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "model").write_bytes(raw)

    with pytest.raises(ModelFileError, match="truncated or altered"):
        FedPNNClassifier.load(tmp_path / "model")
    with pytest.raises(ModelFileError, match="cannot read"):
        FedPNNClassifier.load(tmp_path / "nothing")


def test_probabilities_sum_to_1_and_match_their_logarithms():
    model = FedPNNClassifier().fit(X, Y, parties=OWNERS)

    probabilities = model.predict_proba(X)

    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), probabilities, atol=1e-12)


@pytest.mark.parametrize(
    "classifier",
    [
        FedPNNClassifier(sigma=1e-3),
        FedPNNClassifier.paper(0.2, 0.2),
        FedPNNClassifier(normalize=None, metric=None, sigma=1e-3),
    ],
)
def test_distant_row_has_a_class_and_probabilities(classifier):
    model = classifier.fit(X, Y)
    distant = np.full((1, X.shape[1]), 1e200)

    assert model.predict(distant)[0] in model.classes_
    np.testing.assert_allclose(model.predict_proba(distant).sum(), 1)


def test_data_frames_with_missing_cells_are_supported():
    frame = pd.DataFrame(X, columns=[f"column {j}" for j in range(X.shape[1])])
    frame.iloc[::2, 3] = np.nan  # five rows or more of each class at each party

    model = FedPNNClassifier().fit(frame, Y, parties=OWNERS)

    assert model.model_.feature_names == tuple(frame.columns)
    assert model.model_.scaling.indicators.tolist() == [3]
    assert model.score(frame, Y) > 0.95
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[frame.columns[::-1]])


def test_columns_can_be_named_after_fit(tmp_path):
    names = [f"column {j}" for j in range(X.shape[1])]
    model = FedPNNClassifier().fit(X, Y).name_features(names)
    model.save(tmp_path / "model")

    loaded = FedPNNClassifier.load(tmp_path / "model")

    assert loaded.feature_names_in_.tolist() == names
    with pytest.raises(ValueError, match="a list of 13 names"):
        model.name_features(names[1:])


def test_paper_settings_split_rows_and_hold_out_a_tenth():
    x, y = load_breast_cancer(return_X_y=True)

    classifier = FedPNNClassifier.paper(0.19, 0.17).fit(x, y)

    assert set(classifier.run_record_.rounds[0].upload_bytes) == {"client 1", "client 2"}
    assert classifier.model_.activation == "gaussian"
    assert classifier.counts_.sum() == len(y) - round(0.1 * (y == 0).sum()) - round(
        0.1 * (y == 1).sum()
    )
    assert 0.8 < classifier.server_score_ <= 1
    assert balanced_accuracy(y, classifier.predict(x)) > 0.8


def test_split_depends_only_on_the_seed():
    same, other = (FedPNNClassifier(share=3, random_state=s) for s in (0, 1))

    models = [m.fit(X, Y).model_.to_bytes() for m in (same, clone(same), other)]

    assert models[0] == models[1] != models[2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client_threshold": 0.0}, "client_threshold above 0 or None"),
        ({"server_threshold": np.inf}, "server_threshold above 0 or None"),
        ({"sigma": "wide"}, "sigma above 0 or 'loo'"),
        ({"sigma": -1.0}, "sigma above 0 or 'loo'"),
        ({"normalize": "ranks"}, "expected normalize among"),
        ({"activation": "relu"}, "expected activation among"),
        ({"frame": "local"}, "metric=None"),
        ({"normalize": None}, "metric=None"),
        ({"min_count": 0}, "min_count as an integer of 1 or more"),
        ({"min_count": 2.5}, "min_count as an integer"),
        ({"factor": 0}, "factor above 0"),
        ({"means": False}, "use min_count=1, or means=True"),
        ({"holdout": 1.0}, r"holdout in \[0, 1\)"),
        ({"share": 0}, "share of 1 or more"),
    ],
)
def test_invalid_settings_are_rejected_at_fit(change, words):
    with pytest.raises(ValueError, match=words):
        FedPNNClassifier(**change).fit(X, Y)


def test_parties_must_have_one_entry_per_row():
    with pytest.raises(ValueError, match="one party for each of 178 rows"):
        FedPNNClassifier().fit(X, Y, parties=OWNERS[:-1])


def test_classes_too_rare_at_every_party_raise_with_advice():
    with pytest.raises(DataError, match="lower min_count"):
        FedPNNClassifier(min_count=200).fit(X, Y)


def test_thousands_of_columns_are_refused_before_any_statistics(monkeypatch):
    x = np.random.default_rng(0).normal(size=(60, 5000))
    monkeypatch.setattr("fedneighbors.methods.fedpnn.protocol.ScalingRequest", None)

    with pytest.raises(DataError, match=r"5000 coordinates.*n_features_to_select"):
        FedPNNClassifier().fit(x, np.arange(60) % 2)


def test_few_of_thousands_of_columns_can_be_selected():
    x, y = np.random.default_rng(0).normal(size=(120, 5000)), np.arange(120) % 2
    x[:, [7, 4000]] += 3 * y[:, None]

    model = FedPNNClassifier(n_features_to_select=2).fit(x, y, parties=np.arange(120) // 2 % 2)

    assert np.flatnonzero(model.support_).tolist() == [7, 4000]
    assert model.score(x, y) > 0.95
