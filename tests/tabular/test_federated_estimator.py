"""Estimators of a user's own from sums over parties."""

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.datasets import load_diabetes, load_wine
from sklearn.linear_model import Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

from fedneighbors import FederatedEstimator
from fedneighbors._limits import MAX_CLASSES
from fedneighbors.errors import AggregationError, DataError, ModelFileError, PartyRefused
from fedneighbors.federation import run
from fedneighbors.tabular._federated_estimator import SummaryModel
from tests.federation.grid import ProcessGrid, model_folder

X, Y = load_wine(return_X_y=True)
NAMES = np.array(["north", "south", "west"])[Y]
OWNER = np.arange(len(Y)) % 4


class NaiveBayes(ClassifierMixin, FederatedEstimator):
    """Gaussian naive Bayes."""

    def __init__(self, floor=0.0, sums="plain"):
        self.floor = floor
        self.sums = sums

    def summarize(self, rows, labels):
        squares = labels.T @ rows**2
        return {"counts": labels.sum(axis=0), "sums": labels.T @ rows, "squares": squares}

    def finish(self, totals):
        n = totals["counts"][:, None]
        self.log_priors_ = np.log(totals["counts"] / n.sum())
        self.means_ = totals["sums"] / n
        self.variances_ = totals["squares"] / n - self.means_**2 + self.floor

    def predict(self, X):
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False)[:, None]
        squares = (rows - self.means_) ** 2 / self.variances_ + np.log(self.variances_)
        return self.classes_[(self.log_priors_ - squares.sum(axis=2) / 2).argmax(axis=1)]


class RidgeRegression(RegressorMixin, FederatedEstimator):
    """Ridge regression without an intercept."""

    def summarize(self, rows, labels):
        return {"products": rows.T @ rows, "sums": rows.T @ labels}

    def finish(self, totals):
        self.coef_ = np.linalg.solve(
            totals["products"] + np.eye(len(totals["sums"])), totals["sums"]
        )

    def predict(self, X):
        check_is_fitted(self)
        return validate_data(self, X, reset=False) @ self.coef_


class Histogram(FederatedEstimator):
    """Counts of cells in ten bins, which are integers."""

    def summarize(self, rows, labels):
        assert not labels.any()
        bins = np.digitize(rows, np.linspace(-2, 2, 9))
        return {"counts": (bins[..., None] == np.arange(10)).sum(axis=0)}

    def finish(self, totals):
        self.counts_ = totals["counts"]


def test_classifier_equals_that_of_scikit_learn():
    model = NaiveBayes().fit(X, NAMES, parties=OWNER)

    expected = GaussianNB(var_smoothing=0).fit(X, NAMES)
    np.testing.assert_allclose(model.means_, expected.theta_, rtol=1e-12)
    np.testing.assert_allclose(model.variances_, expected.var_, rtol=1e-6)  # digits cancel
    assert (model.predict(X) == expected.predict(X)).all()
    assert model.classes_.tolist() == ["north", "south", "west"]
    assert [each.request for each in model.run_record_.rounds] == [
        "SummarySchemaRequest",
        "SummaryRequest",
    ]


def test_regressor_equals_that_of_scikit_learn():
    x, y = load_diabetes(return_X_y=True)

    model = RidgeRegression().fit(x, y, parties=np.arange(len(y)) % 3)

    np.testing.assert_allclose(model.coef_, Ridge(fit_intercept=False).fit(x, y).coef_, rtol=1e-9)


owners = st.lists(st.integers(0, 3), min_size=len(Y), max_size=len(Y))


@settings(max_examples=15)
@given(owners)
def test_the_split_does_not_change_sums_of_integers(owner):
    split, pooled = (Histogram().fit(X, parties=parties) for parties in (owner, None))

    assert (split.counts_ == pooled.counts_).all()


@settings(max_examples=15)
@given(owners)
def test_the_split_changes_sums_of_floats_by_rounding(owner):
    split, pooled = (NaiveBayes().fit(X, Y, parties=parties) for parties in (owner, None))

    np.testing.assert_allclose(split.means_, pooled.means_, rtol=1e-13)


def test_floats_are_added_exactly():
    x = np.array([[1e16], [1.0], [-1e16], [2.0**-60]])

    class Sum(FederatedEstimator):
        def summarize(self, rows, labels):
            return {"sum": rows.sum(axis=0)}

        def finish(self, totals):
            self.sum_ = totals["sum"]

    assert Sum().fit(x, parties=list("abcd")).sum_.tolist() == [1.0 + 2.0**-60]


def test_masked_sums_give_the_bits_of_plain_ones():
    plain, masked = (NaiveBayes(sums=sums).fit(X, Y, parties=OWNER) for sums in ("plain", "masked"))

    assert masked.variances_.tobytes() == plain.variances_.tobytes()
    with pytest.raises(AggregationError):
        NaiveBayes(sums="masked").fit(X, Y, parties=OWNER % 2)


def test_a_file_restores_the_estimator(tmp_path):
    frame = pd.DataFrame(X).add_prefix("c")
    model = NaiveBayes(floor=0.5).fit(frame, NAMES, parties=OWNER)

    model.save(tmp_path / "bayes.model")
    loaded = NaiveBayes.load(tmp_path / "bayes.model", floor=0.5)

    assert (loaded.predict(frame) == model.predict(frame)).all()
    assert loaded.variances_.tobytes() == model.variances_.tobytes()
    assert loaded.feature_names_in_.tolist() == frame.columns.tolist()
    with pytest.raises(ModelFileError, match=r"from NaiveBayes\(floor=0.5\), not from Naive.*=0.0"):
        NaiveBayes.load(tmp_path / "bayes.model")
    with pytest.raises(ModelFileError, match=r"not from RidgeRegression\(\)"):
        RidgeRegression.load(tmp_path / "bayes.model")


def test_a_party_with_other_parameters_is_refused():
    estimator = NaiveBayes()
    parties = [estimator.party("a", X, Y), NaiveBayes(floor=1.0).party("b", X, Y)]

    with pytest.raises(PartyRefused, match=r"'b'.*other parameters than the coordinator's"):
        run(estimator.coordinate(), parties)


@pytest.mark.parametrize(
    ("sums", "message"),
    [
        ({"n": np.ones(2)}, "returned 'n' with other values than 0 for a table without rows"),
        ({"n": np.array(["a"])}, "returned 'n' of type <U1; expected an array of integers or"),
        ({"n": np.array([True])}, "returned 'n' of type bool"),
    ],
)
def test_summaries_that_are_no_sums_are_rejected(sums, message):
    class Wrong(Histogram):
        def summarize(self, rows, labels):
            return sums

    with pytest.raises(ValueError, match=message):
        Wrong().fit(X)


def test_shapes_that_depend_on_rows_are_rejected():
    class Rows(Histogram):
        def summarize(self, rows, labels):
            return {"rows": rows}

    with pytest.raises(ValueError, match="arrays differ in size from those for a table without"):
        Rows().fit(X)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"integers": np.zeros(7, np.int64)}, "arrays differ in size"),
        ({"floats": np.zeros((2, 3), np.int64)}, "sums are not of the expected shape"),
        ({"classes": tuple(range(MAX_CLASSES + 1))}, "at most"),
        ({"n_features": 1 << 60}, "the limit is"),
    ],
)
def test_files_with_wrong_sums_are_rejected(tmp_path, changes, message):
    NaiveBayes().fit(X, Y).save(tmp_path / "model")
    model = SummaryModel.load(tmp_path / "model")
    for name, value in changes.items():
        object.__setattr__(model, name, value)
    model.save(tmp_path / "model")

    with pytest.raises(ModelFileError, match=message):
        NaiveBayes.load(tmp_path / "model")


def test_a_classifier_needs_two_classes():
    with pytest.raises(DataError, match="at least two classes over all parties"):
        NaiveBayes().fit(X, np.zeros(len(X)))


@pytest.fixture
def grid_of(tmp_path):
    def make(client, **extra):
        nodes = []
        for k, name in enumerate(["ann", "bob", "cyd"]):
            rows = pd.DataFrame(X).add_prefix("c").assign(kind=NAMES)[k::3]
            rows.to_csv(tmp_path / f"{name}.csv", index=False)
            folder = model_folder(tmp_path, name)
            files = {"data": str(tmp_path / f"{name}.csv"), "model-folder": str(folder)}
            nodes.append({"party-name": name, "label": "kind", **files, **extra})
        return ProcessGrid(client, *nodes)

    return make


def test_flower_writes_the_model_of_one_process(tmp_path, grid_of):
    server, client = NaiveBayes(floor=0.1).flower_apps()
    path = tmp_path / "bayes.model"
    config = {"min-parties": 3, "timeout-s": 60.0, "model-path": str(path)}

    server(grid_of(client), Context(1, 1, {}, RecordDict(), config))

    expected = NaiveBayes(floor=0.1).fit(X, NAMES, parties=np.arange(len(Y)) % 3)
    loaded = NaiveBayes.load(path, floor=0.1)
    assert loaded.variances_.tobytes() == expected.variances_.tobytes()
    assert loaded.classes_.tolist() == expected.classes_.tolist()


def test_nodes_with_a_budget_refuse_exact_sums(tmp_path, grid_of):
    server, client = NaiveBayes().flower_apps()
    config = {"min-parties": 3, "timeout-s": 60.0, "model-path": str(tmp_path / "model")}

    with pytest.raises(PartyRefused, match="exact sums have no privacy budget"):
        server(grid_of(client, epsilon=1.0), Context(1, 1, {}, RecordDict(), config))


@parametrize_with_checks([NaiveBayes(floor=1e-9), RidgeRegression()])
def test_estimators_pass_the_scikit_learn_checks(estimator, check):
    check(estimator)
