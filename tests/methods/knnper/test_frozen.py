"""Frozen embeddings: a shared head from exact sums, and memories as with a network."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy.special import ndtri, softmax
from sklearn.datasets import load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import StandardScaler

from fedneighbors.errors import DataError, ModelFileError
from fedneighbors.methods.knnper import KNNPerClassifier, KNNPerRegressor
from fedneighbors.methods.knnper._frozen import (
    NORMAL_LOG_SCALE,
    SHRINKAGE,
    FrozenModel,
    LinearDiscriminants,
    ridge_head,
    shrink,
)
from fedneighbors.privacy import Privacy
from fedneighbors.tabular._schema import class_moments, covariance_within
from tests.methods.knnper.tampering import alter_file
from tests.methods.knnper.test_bad_input import BLOCKED
from tests.naive.discriminants import lda_posterior

X, Y = load_wine(return_X_y=True)
PARTIES = np.array(["a", "b", "c", "d"])[np.arange(len(Y)) % 4]
TARGETS = np.stack([X[:, 0] + Y, X[:, 1]], axis=1)
pytestmark = pytest.mark.filterwarnings("ignore:parties= is missing")


def square(x):
    return x[:, :5] ** 2


def name_of(kind):
    return getattr(kind, "__name__", kind)


KINDS = ["discriminants", "rows", square]


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_the_head_of_clients_is_that_of_pooled_rows(kind):
    model = KNNPerClassifier(representation=kind)

    split = model.fit(X, Y, parties=PARTIES)
    pooled = KNNPerClassifier(representation=kind).fit(X, Y)

    assert split.weights_.tobytes() == pooled.weights_.tobytes()
    assert split.embed(X)[1].tobytes() == pooled.embed(X)[1].tobytes()
    if kind == "discriminants":
        directions = split._shared.seen.directions
        assert directions.tobytes() == pooled._shared.seen.directions.tobytes()
        assert split.embed(X)[0].tobytes() == pooled.embed(X)[0].tobytes()


@pytest.mark.parametrize("kind", KINDS[1:], ids=name_of)
def test_the_regression_of_clients_is_that_of_pooled_rows(kind):
    split = KNNPerRegressor(representation=kind).fit(X, TARGETS, parties=PARTIES)
    pooled = KNNPerRegressor(representation=kind).fit(X, TARGETS)

    assert split.weights_.tobytes() == pooled.weights_.tobytes()
    assert split.score(X, TARGETS, parties=PARTIES) > 0.7


def lda_proba(columns, priors):
    """Return the probabilities of scikit-learn's LDA with other priors than the class shares."""
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=SHRINKAGE).fit(columns, Y)
    weighted = lda.predict_proba(columns) * priors / lda.priors_
    return weighted / weighted.sum(axis=1, keepdims=True)


def test_shared_probabilities_on_rows_are_those_of_lda():
    model = KNNPerClassifier(representation="rows").fit(X, Y, parties=PARTIES)

    scaled = StandardScaler().fit_transform(X)
    # coordinates are rounded to 2**-16 in the sums
    np.testing.assert_allclose(model.predict_proba(X), lda_proba(scaled, model.overall_), atol=1e-4)
    np.testing.assert_allclose(model.embed(X)[0], scaled, atol=1e-9)


def test_shared_probabilities_of_discriminants_are_those_of_lda():
    model = KNNPerClassifier(representation="discriminants").fit(X, Y, parties=PARTIES)

    scaled = (X - model._shared.center) / model._shared.scale
    drawn_in = np.sign(scaled) * np.log(1 + np.abs(scaled)) / NORMAL_LOG_SCALE
    features = model._shared.seen.features.transform(drawn_in)
    np.testing.assert_allclose(
        model.predict_proba(X), lda_proba(features, model.overall_), atol=1e-4
    )
    keys = model.embed(X)[0][:, :2]  # rows follow, for the heads of a pool
    means = np.array([keys[label == Y].mean(axis=0) for label in range(3)])
    spread = (keys - means[Y]).T @ (keys - means[Y]) / len(Y)
    assert keys.shape == (178, 2)
    assert (np.diag(spread) < 1).all()  # the shrunk covariance is 1 along each direction
    np.testing.assert_allclose(spread, np.diag(np.diag(spread)), atol=0.1)


def test_shared_predictions_on_rows_are_those_of_a_regression():
    moments = class_moments(np.hstack([X, TARGETS]) / 2000, np.zeros(178, np.int64), 1)

    head = ridge_head(moments, 2, shrinkage=0.0)

    rounded = np.rint(np.hstack([X, TARGETS]) / 2000 * 65536) / 65536
    expected = LinearRegression().fit(rounded[:, :13], rounded[:, 13:])
    np.testing.assert_allclose(head[:-1].T, expected.coef_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(head[-1], expected.intercept_, rtol=1e-4, atol=1e-5)


def tables():
    """Return tables on a grid of the fixed point, so that sums have no rounding, with labels."""
    cells = st.sampled_from([0.0, 1.0, -1.0, 0.5, 7.5, -(2.0**-10)])
    rows = npst.arrays(np.float64, st.tuples(st.integers(3, 12), st.just(2)), elements=cells)
    return rows.flatmap(
        lambda x: st.tuples(st.just(x), st.permutations([i % 3 for i in range(len(x))]))
    )


@given(tables(), npst.arrays(np.float64, 2, elements=st.floats(-3, 3)))
def test_the_posterior_matches_its_definition(table, query):
    rows, labels = table[0], np.array(table[1])
    moments = class_moments(rows, labels, 5)
    _, within = covariance_within(moments)
    if np.trace(within) < 1e-3:
        return  # the target of shrinkage has a minimum

    fitted = LinearDiscriminants.fit(moments, shrinkage=0.3)

    shares = np.bincount(labels, minlength=5) / len(labels)
    log_priors = np.log(np.where(shares > 0, shares, 1e-9))
    head = fitted.head(log_priors, shares > 0)
    scores = query @ fitted.directions @ head[:-1] + head[-1]
    expected = lda_posterior(rows.tolist(), labels.tolist(), query.tolist(), 0.3)
    np.testing.assert_allclose(softmax(scores)[:3], expected, atol=1e-6)
    assert scores[3:].max() < scores[:3].max()  # classes without rows


def test_reserved_classes_do_not_change_the_predicted_classes():
    few = KNNPerClassifier(representation="discriminants").fit(X, Y, parties=PARTIES)
    many = KNNPerClassifier(representation="discriminants", classes=range(9))

    many.fit(X, Y, parties=PARTIES)

    assert many.predict_proba(X).shape == (178, 9)
    assert (many.predict(X) == few.predict(X)).all()


WITHOUT_TORCH = """
import sys, tempfile
import numpy as np
from fedneighbors import KNNPerClassifier, KNNPerRegressor
from fedneighbors.baselines import FederatedDiscriminantClassifier
x = np.random.default_rng(0).normal(size=(60, 3))
y, owner = (x[:, 0] > 0).astype(int), np.arange(60) % 3
kinds = ("auto", "auto"), ("discriminants", "paper"), ("rows", "pool"), (np.sinh, "paper")
for kind, combine in kinds:
    model = KNNPerClassifier(representation=kind, combine=combine, sigma="auto")
    model.fit(x, y, parties=owner)
    model.add_client("new", x[:9], y[:9]).update("new", x[9:12], y[9:12]).forget("new", ["1"])
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder + "/m")
        loaded = KNNPerClassifier.load(folder + "/m", np.sinh)
    assert (loaded.predict(x, owner) == model.predict(x, owner)).all()
    assert model.score(x, y, parties=owner) > 0.8
KNNPerRegressor(representation="rows").fit(x, x[:, 1], parties=owner).predict(x, owner)
FederatedDiscriminantClassifier(quadratic=True).fit(x, y, parties=owner).predict(x)
assert "torch" not in sys.modules
"""


def test_frozen_embeddings_work_without_torch():
    process = subprocess.run(
        [sys.executable, "-c", BLOCKED + WITHOUT_TORCH], capture_output=True, text=True, check=False
    )

    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_masked_sums_give_the_bits_of_plain_ones(kind):
    plain = KNNPerClassifier(representation=kind).fit(X, Y, parties=PARTIES)
    masked = KNNPerClassifier(representation=kind, sums="masked").fit(X, Y, parties=PARTIES)

    assert masked.weights_.tobytes() == plain.weights_.tobytes()
    assert masked.clients_["a"].weight == plain.clients_["a"].weight
    unmasked = {r.request for r in masked.run_record_.rounds if r.reduce != "masked"}
    assert unmasked == {"ClientSchemaRequest", "ReleaseRequest"}


def test_no_client_trains_on_gradients():
    model = KNNPerClassifier(representation="discriminants", combine="paper").fit(
        X, Y, parties=PARTIES
    )

    requests = [record.request for record in model.run_record_.rounds]

    assert requests[:2] == ["ClientSchemaRequest", "ClientMomentsRequest"]
    assert requests[2:] == ["CountsRequest", "ClassMomentsRequest", "ReleaseRequest"] * 2


@pytest.mark.parametrize(
    "options",
    [
        {"memory": "8-bit", "strategy": "fifo", "capacity": 20},
        {"memory": "product", "strategy": "reservoir", "capacity": 30},
        {"memory": "centers"},
        {"strategy": "drift"},
        {"combine": "pool"},
        {"n_neighbors": (2, 9), "metric": ("cosine", "euclidean")},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_every_kind_of_memory_can_be_saved_and_loaded(kind, options, tmp_path):
    model = KNNPerClassifier(representation=kind, **options).fit(X, Y, parties=PARTIES)
    model.save(tmp_path / "m")

    loaded = KNNPerClassifier.load(tmp_path / "m", model=square)

    assert loaded.score(X, Y, parties=PARTIES) > 0.7
    expected = model.predict_proba(X, PARTIES)
    assert loaded.predict_proba(X, PARTIES).tobytes() == expected.tobytes()
    assert loaded.representation == kind
    loaded.add_client("new", X[:30], Y[:30]).update("new", X[30:40], Y[30:40])
    assert loaded.predict(X[:3], ["new"] * 3).shape == (3,)


def test_a_forgotten_row_is_no_longer_a_key():
    model = KNNPerClassifier(representation="discriminants").fit(X, Y, parties=PARTIES)
    keys = model.clients_["a"].memory.keys.copy()

    model.forget("a", ["3"])

    remaining = model.clients_["a"].memory.keys
    assert len(remaining) == len(keys) - 1
    assert not (remaining == keys[3]).all(axis=1).any()


def test_drift_is_detected_in_discriminants():
    x, y = load_digits(return_X_y=True)
    x, owner = x[:900] / 16, ["ann"] * 400 + ["bob"] * 500
    model = KNNPerClassifier(representation="discriminants", strategy="drift")
    model.fit(x, y[:900], parties=owner)

    for start in range(0, 400, 20):
        rows = slice(start, start + 20)
        model.update("ann", x[rows], (y[rows] + 1) % 10)

    assert model.clients_["ann"].memory.n_evictions > 0
    assert model.clients_["bob"].memory.n_evictions == 0


def test_memories_of_discriminants_share_a_codebook():
    x, y = load_digits(return_X_y=True)
    owner = ["ann" if label < 5 else "bob" for label in y[500:]]
    model = KNNPerClassifier(representation="discriminants", combine="paper").fit(
        x[500:], y[500:], parties=owner
    )

    model.share_codebook(x[:500], n_stretches=3)

    assert model.clients_["ann"].memory.codes.shape[1] == 3
    assert model.score(x[500:], y[500:], parties=owner) > 0.95


def test_a_fitted_transformer_is_an_embedding():
    pca = PCA(3, random_state=0).fit(StandardScaler().fit_transform(X))

    model = KNNPerClassifier(representation=pca).fit(X, Y, parties=PARTIES)

    np.testing.assert_array_equal(model.embed(X)[0], pca.transform(X))
    assert model.run_record_.parameters["representation"] == "embedding"


def test_images_are_embedded_as_flat_rows():
    x, y = load_digits(return_X_y=True)
    images = (x[:300] / 16).reshape(-1, 8, 8)

    model = KNNPerClassifier(representation="discriminants", combine="paper").fit(images, y[:300])

    assert model.embed(images)[0].shape == (300, 9)
    assert model.score(images, y[:300], parties=["all"] * 300) > 0.95


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"representation": "pixels"}, ValueError, "expected representation among"),
        ({"representation": 3}, TypeError, "a function of rows or a fitted transformer"),
        ({"checkpoint": "file"}, ValueError, "no rounds to resume"),
        (
            {"privacy": Privacy(1, "1e-5", classes=(0, 1, 2), bounds=(0, 2000))},
            ValueError,
            "are not private",
        ),
        ({"representation": lambda x: x[1:]}, ValueError, "expected an embedding of shape"),
        ({"representation": lambda x: x / 0}, DataError, "are not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_unsupported_settings_are_refused(options, error, words):
    model = KNNPerClassifier(**{"representation": "rows", **options})

    with pytest.raises(error, match=words):
        model.fit(X, Y, parties=PARTIES)


def test_discriminants_need_classes():
    with pytest.raises(ValueError, match="discriminants need classes"):
        KNNPerRegressor(representation="discriminants").fit(X, TARGETS)


@pytest.mark.parametrize(
    ("kind", "changed", "words"),
    [
        ("rows", {"shared.weights": np.ones(40)}, "cannot reshape"),
        ("rows", {"shared.weights": np.ones(39)}, "the head has 12 columns, the keys 13"),
        ("discriminants", {"shared.seen": None}, "discriminants are missing"),
        ("discriminants", {"blueprint.model": "rows"}, "another network"),
    ],
)
def test_files_that_contradict_themselves_are_refused(kind, changed, words, tmp_path):
    KNNPerClassifier(representation=kind).fit(X, Y, parties=PARTIES).save(tmp_path / "m")
    (tmp_path / "m").write_bytes(alter_file((tmp_path / "m").read_bytes(), changed))

    with pytest.raises(ModelFileError, match=words):
        KNNPerClassifier.load(tmp_path / "m")


def test_the_code_of_an_embedding_is_not_in_its_file(tmp_path):
    KNNPerClassifier(representation=square).fit(X, Y, parties=PARTIES).save(tmp_path / "m")

    with pytest.raises(ValueError, match="its code is not stored"):
        KNNPerClassifier.load(tmp_path / "m")


def test_other_sizes_of_the_shared_model_are_named():
    models = [FrozenModel("rows", (3,), n) for n in (2, 2, 3)]

    assert models[0].digest == models[1].digest != models[2].digest
    with pytest.raises(ValueError, match="expected a frozen embedding among"):
        FrozenModel("network", (3,), 2)


def test_shrinkage_keeps_the_mean_variance():
    covariance = np.array([[4.0, 1.0], [1.0, 2.0]])

    assert shrink(covariance, 0.5).tolist() == [[3.5, 0.5], [0.5, 2.5]]
    assert np.linalg.cholesky(shrink(np.zeros((2, 2)), 0.5)).shape == (2, 2)


def test_dependent_columns_without_shrinkage_are_named():
    moments = class_moments(np.ones((4, 2)), np.array([0, 1, 0, 1]), 2)

    with pytest.raises(DataError, match="use shrinkage"):
        LinearDiscriminants.fit(moments, shrinkage=0.0)


def test_the_unit_of_drawn_in_columns_is_that_of_normal_ones():
    z = ndtri((np.arange(100_000) + 0.5) / 100_000)
    model = FrozenModel("discriminants", (1,), 2)

    columns = model.inputs(3 * z[:, None] + 5, np.array([5.0]), np.array([3.0]))

    assert columns.std() == pytest.approx(1, abs=1e-3)
    assert (np.diff(columns[:, 0]) > 0).all()
