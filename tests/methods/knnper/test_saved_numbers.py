"""Fitted regressors in files: they are read back equal, and distinct from classifiers."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes

from fedneighbors.errors import DataError, ModelFileError
from fedneighbors.federation._messages import encode
from fedneighbors.methods.knnper import KNNPerClassifier, KNNPerRegressor
from fedneighbors.methods.knnper._model import KNNPerModel
from fedneighbors.methods.knnper._task import CLASSIFICATION, REGRESSION
from fedneighbors.tabular._model_file import encode_model
from tests.methods.knnper.tampering import alter_file
from tests.seeds import cases

X, Y = load_diabetes(return_X_y=True)
X, Y, OTHERS = X[:120], Y[:120], X[120:]
PARTIES = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")
TWO_OUTPUTS = np.column_stack([Y, X[:, 2] * 1e-3])
QUICK = {"hidden": (16, 8), "n_rounds": 2}


@pytest.fixture(scope="module")
def fitted():
    return KNNPerRegressor(**QUICK, combine="pool").fit(X, TWO_OUTPUTS, parties=PARTIES)


@pytest.fixture
def path(fitted, tmp_path):
    fitted.save(tmp_path / "model.fnk")
    return tmp_path / "model.fnk"


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"combine": "pool"},
        {"strategy": "reservoir", "capacity": 20},
        {"strategy": "fifo", "capacity": 50, "combine": "pool", "standardize": False},
        {"kernel": "gaussian", "sigma": 3.0, "n_neighbors": 4},
        {"n_neighbors": (2, 9), "metric": ("cosine", "euclidean"), "capacity": 30},
    ],
)
@pytest.mark.parametrize("y", [Y, TWO_OUTPUTS], ids=["one output", "two outputs"])
def test_a_loaded_regressor_behaves_the_same(parameters, y, tmp_path):
    original = KNNPerRegressor(**QUICK, **parameters).fit(X, y, parties=PARTIES)
    original.save(tmp_path / "a")
    loaded = KNNPerRegressor.load(tmp_path / "a")

    assert loaded.predict(X, PARTIES).shape == y.shape
    assert loaded.predict(X, PARTIES).tobytes() == original.predict(X, PARTIES).tobytes()
    for model in (original, loaded):  # later changes have the same effect on both
        model.update("north", X[::-1][:40], y[::-1][:40], ids=[f"late {i}" for i in range(40)])
        model.add_client("east", X[::5], y[::5])
        model.forget("south", model.clients_["south"].memory.ids[:3])
        model.save(tmp_path / f"{model is original}")
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()
    assert loaded.predict(X, PARTIES).tobytes() == original.predict(X, PARTIES).tobytes()
    east = ["east"] * len(X)
    assert loaded.predict(X, east).tobytes() == original.predict(X, east).tobytes()


@pytest.mark.parametrize("memory", ["8-bit", "product", "shared codebook"])
def test_compressed_memories_are_read_back_equal(memory, tmp_path):
    kind = "exact" if memory == "shared codebook" else memory
    original = KNNPerRegressor(**QUICK, memory=kind).fit(X, TWO_OUTPUTS, parties=PARTIES)
    if memory == "shared codebook":
        original.share_codebook(OTHERS, n_stretches=4)
    original.save(tmp_path / "a")
    loaded = KNNPerRegressor.load(tmp_path / "a")

    assert loaded.predict(X, PARTIES).tobytes() == original.predict(X, PARTIES).tobytes()
    for model in (original, loaded):
        model.update("north", X[:20], TWO_OUTPUTS[:20]).add_client("east", X[::5], TWO_OUTPUTS[::5])
        if memory != "product":  # the codebook of one client contains means of its rows
            model.forget("south", model.clients_["south"].memory.ids[:3])
        model.save(tmp_path / f"{model is original}")
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()
    for name in ("north", "south", "east"):
        parties = [name] * len(X)
        assert loaded.predict(X, parties).tobytes() == original.predict(X, parties).tobytes()
        loaded_memory, fitted_memory = (model.clients_[name].memory for model in (loaded, original))
        assert loaded_memory.labels.tolist() == fitted_memory.labels.tolist()
        assert loaded_memory.nbytes == fitted_memory.nbytes


@pytest.mark.parametrize(
    "labels",
    [np.full((80, 2), np.nan), np.zeros((80, 1)), np.zeros(80, np.uint8), np.zeros((79, 2))],
    ids=lambda labels: f"{labels.dtype}{labels.shape}",
)
def test_invalid_targets_of_codes_are_refused(labels, path):
    KNNPerRegressor(**QUICK, memory="8-bit").fit(X, TWO_OUTPUTS, parties=PARTIES).save(path)
    memory = KNNPerModel.load(path).clients["north"].memory
    assert memory.labels.shape == (80, 2)

    path.write_bytes(alter_file(path.read_bytes(), {"clients.north.memory.labels": labels}))

    with pytest.raises(ModelFileError, match="has no usable model"):
        KNNPerRegressor.load(path)


def test_parameters_and_attributes_are_restored(fitted, path):
    loaded = KNNPerRegressor.load(path)

    for name in ("hidden", "n_neighbors", "sigma", "kernel", "combine", "strategy", "memory"):
        assert getattr(loaded, name) == getattr(fitted, name)
    assert loaded.overall_.tolist() == fitted.overall_.tolist()
    assert encode(loaded.pool_) == encode(fitted.pool_)
    assert loaded.pool_.experts == REGRESSION.experts
    assert (loaded.n_outputs_, loaded.n_features_in_) == (2, 10)
    assert not hasattr(loaded, "classes_")
    assert loaded.guarantee_ == ""
    assert loaded.score(X, TWO_OUTPUTS, parties=PARTIES) == fitted.score(
        X, TWO_OUTPUTS, parties=PARTIES
    )


def test_a_column_of_targets_stays_a_column(tmp_path):
    KNNPerRegressor(**QUICK).fit(X, Y[:, None], parties=PARTIES).save(tmp_path / "m")

    assert KNNPerRegressor.load(tmp_path / "m").predict(X, PARTIES).shape == (120, 1)


def test_a_client_file_has_only_its_own_memory(fitted, tmp_path):
    fitted.save(tmp_path / "north.fnk", client="north")

    loaded = KNNPerRegressor.load(tmp_path / "north.fnk")

    assert list(loaded.clients_) == ["north"]
    expected = fitted.predict(X, ["north"] * len(X))
    assert loaded.predict(X).tobytes() == expected.tobytes()  # a single client is the default
    south, raw = fitted.clients_["south"].memory, (tmp_path / "north.fnk").read_bytes()
    other_rows = (*south.keys.astype(np.float32), *south.labels)
    assert not any(row.tobytes() in raw for row in other_rows)
    with pytest.raises(ValueError, match=r"client 'moon' is unknown; .* Known clients: \['north'"):
        fitted.save(tmp_path / "moon.fnk", client="moon")


def test_column_names_and_empty_memories_are_restored(tmp_path):
    names = [f"c{j}" for j in range(10)]
    emptied = (
        KNNPerRegressor(**QUICK, combine="pool").fit(X, Y, parties=PARTIES).name_features(names)
    )
    emptied.forget("south", emptied.clients_["south"].memory.ids)

    emptied.save(tmp_path / "m")
    loaded = KNNPerRegressor.load(tmp_path / "m")

    assert loaded.feature_names_in_.tolist() == names
    assert len(loaded.clients_["south"].memory) == 0
    with pytest.warns(UserWarning, match="valid feature names"):
        assert loaded.predict(X, PARTIES).tolist() == emptied.predict(X, PARTIES).tolist()


def test_the_error_names_the_right_estimator(path, tmp_path):
    labels = np.digitize(Y, [100, 200])
    KNNPerClassifier(**QUICK).fit(X, labels, parties=PARTIES).save(tmp_path / "classes")

    with pytest.raises(ModelFileError, match=r"predicts numbers; read it with KNNPerRegressor"):
        KNNPerClassifier.load(path)
    with pytest.raises(
        ModelFileError, match=r"distinguishes classes; read it with KNNPerClassifier"
    ):
        KNNPerRegressor.load(tmp_path / "classes")
    assert KNNPerClassifier.load(tmp_path / "classes").classes_.tolist() == [0, 1, 2]


def test_a_foreign_file_is_refused(path):
    raw = path.read_bytes()

    for changed, words in [
        (raw[:-1], "truncated or altered"),
        (raw[:300] + bytes([raw[300] ^ 1]) + raw[301:], "truncated or altered"),
        (raw[:7] + b"9" + raw[8:], "format version"),
        (b"PK" + raw, "is not a fedneighbors model"),
        (alter_file(raw, {}, magic=CLASSIFICATION.magic), "has no usable model: it has no classes"),
        (encode_model(REGRESSION.magic, KNNPerModel.from_bytes(raw).shared), "has no usable model"),
    ]:
        path.write_bytes(changed)
        with pytest.raises(ModelFileError, match=words):
            KNNPerRegressor.load(path)


def test_classes_in_place_of_numbers_are_refused(path, tmp_path):
    labels = np.digitize(Y, [100, 200])
    KNNPerClassifier(**QUICK).fit(X, labels, parties=PARTIES).save(path)
    path.write_bytes(alter_file(path.read_bytes(), {}, magic=REGRESSION.magic))

    with pytest.raises(ModelFileError, match="has classes, in a file of a regression model"):
        KNNPerRegressor.load(path)


@pytest.mark.parametrize(
    "changed",
    [
        {"memory.labels": np.full((80, 2), np.nan)},
        {"memory.labels": np.full((80, 2), np.inf)},
        {"memory.labels": np.zeros((80, 3))},
        {"memory.labels": np.zeros((79, 2))},
        {"memory.labels": np.zeros(80)},
        {"memory.labels": np.zeros((80, 2), np.int64)},
        {"memory.labels": np.zeros((80, 2), np.float32)},
        {"memory.keys": np.full((80, 8), np.nan)},
        {"memory.keys": np.zeros((80, 9))},
        {"memory.keys": np.zeros((81, 8))},
        {"memory.extras": (np.full((80, 10), np.nan),)},
        {"memory.extras": (np.zeros((79, 10)),)},
        {"memory.extras": (np.zeros((80, 9)),)},
        {"memory.extras": (np.zeros((80, 10), np.int64),)},
        {"memory.extras": ()},
        {"weight": 1.5},
        {"memory.ids": '["a"]'},
        {"memory.ids": "[" * 100_000},
        {"memory.state": "{}"},
        {"settings.strategy": "drift"},
        {"settings.memory": "centers"},
        {"settings.n_neighbors": 0},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_an_impossible_memory_is_refused(path, changed):
    raw = path.read_bytes()
    assert KNNPerRegressor.load(path).clients_["north"].memory.labels.shape == (80, 2)

    changed = {f"clients.north.{name}": value for name, value in changed.items()}
    path.write_bytes(alter_file(raw, changed))

    with pytest.raises(ModelFileError, match="has no usable model"):
        KNNPerRegressor.load(path)


@pytest.mark.parametrize(
    "changed",
    [
        {"shared.overall": np.ones((3, 2))},
        {"shared.overall": np.ones((2, 3))},
        {"shared.overall": np.ones((2, 0))},
        {"shared.overall": np.ones((2, 2, 1))},
        {"shared.overall": np.array([[0.0, np.nan], [1.0, 1.0]])},
        {"shared.overall": np.array([[0.0, 0.0], [1.0, 0.0]])},
        {"shared.classes": (0, 1)},
        {"shared.pool.experts": ("shared model",) * 5},
        {"shared.pool.weights": np.full(5, np.nan)},
        {"shared.pool.weights": np.full(5, -1.0)},
        {"shared.pool.losses_without": np.zeros(4)},
        {"shared.center": np.zeros(9)},
        {"shared.scale": np.zeros(10)},
        {"shared.agreed.n_features": 9},
        {"shared.agreed.feature_names": ("a", "b")},
        {"shared.weights": np.zeros(3, np.float32)},
        {"blueprint.n_outputs": 3},
        {"flat": True},
        {"settings.strategy": "drift"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_an_impossible_model_is_refused(path, changed):
    raw = path.read_bytes()
    path.write_bytes(alter_file(raw, {}))
    assert path.read_bytes() == raw

    path.write_bytes(alter_file(raw, changed))

    with pytest.raises(ModelFileError, match="has no usable model"):
        KNNPerRegressor.load(path)


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small_file")
    model = KNNPerRegressor(hidden=(4,), n_rounds=1, combine="pool", memory="8-bit", capacity=20)
    model.fit(X[:40], TWO_OUTPUTS[:40], parties=PARTIES[:40]).save(folder / "m")
    return folder, (folder / "m").read_bytes()


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@settings(max_examples=cases(300))
@given(
    st.lists(
        st.tuples(
            st.floats(0, 1, exclude_max=True),
            st.one_of(
                st.binary(min_size=1, max_size=2),
                st.sampled_from([b"\0" * 8, b"\xff" * 8, np.float64(np.inf).tobytes(), b"[", b"9"]),
            ),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_an_altered_file_predicts_or_is_refused(small_file, changes):
    folder, raw = small_file
    frame = bytearray(raw[len(REGRESSION.magic) + 32 :])
    for position, replacement in changes:
        first = int(position * len(frame))
        frame[first : first + len(replacement)] = replacement

    (folder / "altered").write_bytes(
        REGRESSION.magic + hashlib.sha256(frame).digest() + bytes(frame)
    )

    try:
        loaded = KNNPerRegressor.load(folder / "altered")
        for name in loaded.clients_:
            assert loaded.predict(X[:2], [name] * 2).shape in ((2,), (2, 2))
    except (ModelFileError, DataError):  # DataError if weights became too large for the rows
        pass
