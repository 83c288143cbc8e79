"""``FlyNNClassifier(privacy=...)``: guarantees, refusals, files and records."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedneighbors import FlyNNClassifier, Privacy
from fedneighbors.datasets import NumericColumn, Schema
from fedneighbors.errors import PrivacyError
from fedneighbors.methods.flynn._model import PRIVATE_SHARPNESS
from fedneighbors.methods.flynn.algorithm import choose_sharpness
from fedneighbors.metrics import balanced_accuracy

DECLARED = {"classes": ("ill", "well"), "bounds": (-20.0, 20.0)}
CENTRAL = Privacy(epsilon=1.0, delta=1e-6, mechanism="central", **DECLARED)
LOCAL = Privacy(epsilon=1.0, mechanism="local", **DECLARED)
PAPER = Privacy(epsilon=1.0, mechanism="paper", **DECLARED)
AGE = NumericColumn("age", 0.0, 110.0)
SCHEMA = Schema((AGE,), "died", ("no", "yes"))
OPEN = Schema((NumericColumn("age"),), "died", ("no", "yes"))
EACH_MECHANISM = pytest.mark.parametrize(
    "privacy", [CENTRAL, LOCAL, PAPER], ids=lambda p: p.mechanism
)

# With such a large epsilon the noise is negligible and scikit-learn's checks pass, except for a
# second ``partial_fit``, which would void the guarantee.
NEGLIGIBLE_NOISE = Privacy(epsilon=1e6, mechanism="local", bounds=(-100.0, 100.0))
REASON = "partial_fit on a private model is refused"
WEIGHTED_CHECKS = (
    "check_sample_weights_pandas_series",
    "check_sample_weights_not_an_array",
    "check_sample_weights_list",
    "check_sample_weights_shape",
    "check_sample_weights_not_overwritten",
    "check_sample_weight_equivalence_on_dense_data",
    "check_sample_weight_equivalence_on_sparse_data",
    "check_all_zero_sample_weights_error",
    "check_classifiers_one_label_sample_weights",
)


class DeclaredClasses(FlyNNClassifier):
    """Classifier that declares the labels of its rows, which the scikit-learn checks choose."""

    def _train(self, X, y, parties, reserved, sample_weight):
        privacy = self.privacy
        self.privacy = replace(privacy, classes=tuple(np.unique(np.asarray(y)).tolist()))
        try:
            return super()._train(X, y, parties, reserved, sample_weight)
        finally:
            self.privacy = privacy


@parametrize_with_checks(
    [DeclaredClasses(n_units=2000, n_active=64, privacy=NEGLIGIBLE_NOISE)],
    expected_failed_checks=lambda _: {
        **dict.fromkeys(WEIGHTED_CHECKS, "sample_weight under a budget is refused"),
        "check_estimators_partial_fit_n_features": REASON,
        "check_fit_score_takes_y": REASON,
        "check_n_features_in_after_fitting": REASON,
        "check_classifiers_regression_target": "labels are declared, numbers of any kind",
        "check_classifier_data_not_an_array": "a data frame needs a schema",
        "check_dataframe_column_names_consistency": "a data frame needs a schema",
        "check_estimators_nan_inf": "rows that are not finite are left out",
    },
)
def test_scikit_learn_accepts_the_private_estimator(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def rows():
    """Generated rows that no default was chosen on: 9,000 to learn from, 1,000 to predict."""
    x, y = make_classification(
        n_samples=10_000,
        n_features=30,
        n_informative=30,
        n_redundant=0,
        n_clusters_per_class=5,
        class_sep=1.2,
        random_state=77,
    )
    return (x[:9000], np.array(["ill", "well"])[y[:9000]]), (
        x[9000:],
        np.array(["ill", "well"])[y[9000:]],
    )


@pytest.fixture(scope="module")
def fitted(rows):
    (x, y), _ = rows
    owner = np.arange(len(y)) % 4
    return {
        privacy.mechanism: FlyNNClassifier(privacy=privacy).fit(x, y, parties=owner)
        for privacy in (CENTRAL, LOCAL, PAPER)
    }


def test_central_beats_local_which_beats_the_paper(fitted, rows):
    _, (x, y) = rows

    scores = {name: balanced_accuracy(y, model.predict(x)) for name, model in fitted.items()}

    # Noise is fresh in every run: around .82, .71 and .55, each with a spread of about .015.
    assert scores["central"] > 0.74
    assert scores["central"] > scores["local"] - 0.02
    assert scores["local"] > 0.58


@EACH_MECHANISM
def test_probabilities_and_decisions_agree_with_predictions(fitted, rows, privacy):
    model, (x, _) = fitted[privacy.mechanism], rows[1]

    probabilities = model.predict_proba(x)

    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)
    assert (model.classes_[probabilities.argmax(axis=1)] == model.predict(x)).all()
    assert ((model.decision_function(x) > 0) == (model.predict(x) == "well")).all()


@EACH_MECHANISM
def test_a_saved_private_model_keeps_predictions_and_guarantee(fitted, rows, privacy, tmp_path):
    model, (x, _) = fitted[privacy.mechanism], rows[1]

    model.save(tmp_path / "private.fnn")
    loaded = FlyNNClassifier.load(tmp_path / "private.fnn")

    assert (loaded.predict(x) == model.predict(x)).all()
    assert loaded.model_.guarantee == model.model_.guarantee != ""


@EACH_MECHANISM
@pytest.mark.parametrize("change", ["partial_fit", "unlearn"])
def test_exact_rows_are_not_mixed_into_noised_counts(fitted, rows, privacy, change):
    model, (x, y) = fitted[privacy.mechanism], rows[1]
    before = model.counts_.tobytes()

    with pytest.raises(PrivacyError, match="would add exact rows to noised counts"):
        getattr(model, change)(x[:5], y[:5])

    assert model.counts_.tobytes() == before


def fit_small(privacy, seed=0, n=60):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    settings = {"n_units": 50, "n_inputs": 2, "n_active": 5, "standardize": False, "expand": None}
    labels = np.array(["ill", "well"])[y]
    classifier = FlyNNClassifier(privacy=privacy, **settings)
    return classifier.fit(rng.normal(size=(n, 4)) + y[:, None], labels)


def test_models_of_one_privacy_merge_and_their_noise_adds_up():
    first, second = fit_small(LOCAL, 1), fit_small(LOCAL, 2)
    counts = first.counts_ + second.counts_

    merged = first.merge(second)

    assert (merged.counts_ == counts).all()
    assert merged.model_.noise_variance == 2 * second.model_.noise_variance


def test_a_private_and_an_exact_model_do_not_merge():
    with pytest.raises(ValueError, match="expected two exact models or two of the same privacy"):
        fit_small(LOCAL).merge(fit_small(None))


def test_two_fits_of_one_table_differ_in_their_noise():
    assert (fit_small(LOCAL).counts_ != fit_small(LOCAL).counts_).any()


def test_the_record_has_guarantee_and_cost():
    record = fit_small(LOCAL).run_record_

    assert (record.privacy["epsilon"], record.privacy["delta"]) == (1.0, 0.0)
    assert record.privacy["spent by each party"] == "epsilon=1"
    assert record.privacy["neighbors"].startswith("add_remove")
    assert fit_small(None).run_record_.privacy == {}


def test_the_record_names_the_papers_accounting():
    rng = np.random.default_rng(0)
    policy = Privacy(
        epsilon=1,
        mechanism="paper",
        classes=(0, 1),
        bounds=(-5.0, 5.0),
        n_picks=2,
        accounting="paper",
    )
    x, y = rng.normal(size=(60, 4)), np.arange(60) % 2

    settings = {"n_units": 64, "n_inputs": 2, "n_active": 4, "decay": 0.5, "standardize": False}
    classifier = FlyNNClassifier(privacy=policy, **settings)
    record = classifier.fit(x, y, parties=np.arange(60) % 5).run_record_

    assert record.privacy["spent by each party"] == f"epsilon={Fraction(1, 5)}"
    assert record.privacy["accounting"] == "epsilon / 5 each, as printed"


def test_privacy_survives_cloning_and_parameters():
    model = clone(FlyNNClassifier(privacy=CENTRAL)).set_params(privacy=LOCAL)

    assert model.get_params()["privacy"] == LOCAL


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"epsilon": 0}, "expected epsilon above 0"),
        ({"epsilon": -1.0}, "expected epsilon above 0"),
        ({"epsilon": float("nan")}, "expected a finite epsilon"),
        ({"epsilon": float("inf")}, "expected a finite epsilon"),
        ({"epsilon": "much"}, "expected epsilon as a number"),
        ({"epsilon": "1e-999999999"}, "expected epsilon as a number"),
        ({"epsilon": Decimal("1e999999999")}, "expected a finite epsilon"),
        ({"epsilon": 1, "delta": 1.0}, r"expected delta in \[0, 1\)"),
        ({"epsilon": 1, "delta": -1e-9}, r"expected delta in \[0, 1\)"),
        ({"epsilon": 1, "delta": float("nan")}, "expected a finite delta"),
        ({"epsilon": 1, "mechanism": "magic"}, "expected mechanism as one of"),
        ({"epsilon": 1, "neighbors": "nobody"}, "expected neighbors as one of"),
        ({"epsilon": 1, "schema": Schema((AGE,))}, "needs the classes of the schema"),
        ({"epsilon": 1, "schema": SCHEMA, "classes": (1, 2)}, "classes are declared twice"),
        ({"epsilon": 1, "schema": SCHEMA, "bounds": (0, 1)}, "bounds are declared twice"),
        ({"epsilon": 1, "schema": OPEN}, "declares no range for column 'age'"),
        ({"epsilon": 1, "constants_share": 1}, "expected constants_share in"),
        ({"epsilon": 1, "n_picks": 0}, "expected n_picks of 1 or more"),
        ({"epsilon": 1, "colluders": -1}, "expected colluders of 0 or more"),
        ({"epsilon": 1, "accounting": "none"}, "expected accounting as one of"),
    ],
)
def test_privacy_out_of_range_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Privacy(**arguments)


def test_the_path_of_a_schema_is_refused():
    with pytest.raises(
        TypeError, match=r"expected schema=Schema.load\(path\) or None, got 's.toml"
    ):
        Privacy(epsilon=1, schema="s.toml")


@pytest.mark.parametrize("mechanism", ["local", "paper"])
def test_a_useless_delta_is_refused_by_the_training(mechanism):
    privacy = Privacy(epsilon=1, delta=1e-6, mechanism=mechanism, classes=(0, 1))
    classifier = FlyNNClassifier(n_units=64, n_active=4, standardize=False, privacy=privacy)

    with pytest.raises(ValueError, match="does not use a delta"):
        classifier.fit(np.eye(6), [0, 1] * 3)


@pytest.mark.parametrize("arguments", [{"epsilon": None}, {"epsilon": 1, "n_picks": 2.5}])
def test_privacy_of_another_type_is_refused(arguments):
    with pytest.raises(TypeError, match="expected"):
        Privacy(**arguments)


def test_missing_declarations_are_named():
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2

    with pytest.raises(ValueError, match=r"Privacy\(classes="):
        FlyNNClassifier(privacy=Privacy(epsilon=1)).fit(x, y)


def test_rows_with_labels_not_declared_are_left_out():
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 3
    policy = Privacy(epsilon=1, classes=(0, 1), bounds=(0.0, 20.0))

    assert FlyNNClassifier(privacy=policy).fit(x, y).classes_.tolist() == [0, 1]


def test_rows_that_are_not_finite_are_left_out():
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    x[3, 1], x[4, 0] = np.nan, np.inf
    policy = Privacy(epsilon=1, classes=(0, 1), bounds=(0.0, 20.0))

    assert FlyNNClassifier(privacy=policy).fit(x, y).classes_.tolist() == [0, 1]


def test_a_data_frame_is_read_by_its_schema(rows):
    (x, y), (x_new, truth) = rows
    names = [f"c{i}" for i in range(30)]
    columns = tuple(NumericColumn(name, -20.0, 20.0, 0.0) for name in names)
    privacy = Privacy(1.0, 1e-6, "central", schema=Schema(columns, "state", ("ill", "well")))
    frame = pd.DataFrame(x, columns=names).astype(object)
    frame.loc[5, "c1"] = "unreadable"

    model = FlyNNClassifier(privacy=privacy).fit(frame.iloc[:, ::-1], y)

    predicted = model.predict(pd.DataFrame(x_new, columns=names))
    assert balanced_accuracy(truth, predicted) > 0.7
    assert model.model_.feature_names == tuple(names)


def test_a_data_frame_without_a_schema_is_refused(rows):
    (x, y), _ = rows

    with pytest.raises(ValueError, match="a data frame needs a schema under a privacy budget"):
        FlyNNClassifier(privacy=LOCAL).fit(pd.DataFrame(x), y)


@EACH_MECHANISM
def test_private_probabilities_use_no_rows_for_calibration(fitted, privacy):
    model = fitted[privacy.mechanism].model_

    assert not model.losses.any()
    assert model.sharpness == PRIVATE_SHARPNESS != choose_sharpness(model.losses)


@pytest.mark.parametrize("mechanism", ["local", "central"])
def test_with_negligible_noise_counts_equal_the_exact_ones(mechanism):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), np.arange(60) % 2
    settings = {"n_units": 50, "n_inputs": 2, "n_active": 5, "standardize": False, "expand": None}
    negligible = Privacy(epsilon=1e6, mechanism=mechanism, classes=(0, 1))

    private, exact = (
        FlyNNClassifier(privacy=privacy, **settings).fit(x, y, parties=np.arange(60) % 4)
        for privacy in (negligible, None)
    )

    assert (private.counts_ == exact.counts_).all()
