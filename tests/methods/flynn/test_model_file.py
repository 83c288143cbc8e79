import contextlib
import dataclasses
import hashlib
import os
import pickle
import resource

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors import FlyNNClassifier
from fedneighbors.errors import ModelFileError
from fedneighbors.federation._messages import encode
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn._model import FlyNNModel
from fedneighbors.methods.flynn.algorithm import HashPlan
from tests.methods.knnper.tampering import alter_record
from tests.seeds import cases

MODEL = FlyNNModel(
    plan=HashPlan(FeatureMap(2, "mirror", np.zeros(2), np.ones(2), 5), 3, 2, 1, 5),
    classes=("a", "b"),
    counts=np.array([[1, 0], [0, 2], [3, 0]], np.uint8),
    decay=0.5,
    class_normalized=True,
    feature_names=("age", "weight"),
)


def file_of_frame(frame):
    """Return a model file with a correct checksum for any frame."""
    return b"FNMODEL4" + hashlib.sha256(frame).digest() + frame


VALID = file_of_frame(encode(MODEL))


def table(kind="text"):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 40)
    labels = {"text": ["no", "yes"], "integers": [-5, 9], "booleans": [False, True]}[kind]
    return rng.normal(size=(40, 3)) + y[:, None], np.array(labels)[y]


@pytest.mark.parametrize("kind", ["text", "integers", "booleans"])
@pytest.mark.parametrize("options", [{}, {"standardize": False, "expand": None, "decay": 0.3}])
def test_a_loaded_classifier_predicts_and_learns_alike(tmp_path, kind, options):
    x, y = table(kind)
    classifier = FlyNNClassifier(n_units=60, n_active=5, **options).fit(x, y)

    classifier.save(tmp_path / "flynn.model")
    loaded = FlyNNClassifier.load(tmp_path / "flynn.model")

    assert loaded.model_.to_bytes() == classifier.model_.to_bytes()
    assert (loaded.predict(x) == classifier.predict(x)).all()
    assert (loaded.predict_proba(x) == classifier.predict_proba(x)).all()
    assert loaded.classes_.tolist() == classifier.classes_.tolist()
    assert (loaded.unlearn(x, y).counts_ == 0).all()


def test_names_of_columns_are_saved(tmp_path):
    x, y = table()

    FlyNNClassifier(n_units=60).fit(x, y).name_features(["a", "b", "c"]).save(tmp_path / "m")

    assert FlyNNClassifier.load(tmp_path / "m").feature_names_in_.tolist() == ["a", "b", "c"]


def test_the_bytes_of_a_model_are_those_of_its_file(tmp_path):
    model = FlyNNModel.from_bytes(VALID)

    model.save(tmp_path / "m")

    assert (tmp_path / "m").read_bytes() == VALID == model.to_bytes()


def test_a_file_cut_off_anywhere_is_refused():
    for length in range(len(VALID)):
        with pytest.raises(ModelFileError, match="my model"):
            FlyNNModel.from_bytes(VALID[:length], source="my model")


def test_a_file_with_any_bit_flipped_is_refused():
    for position in range(len(VALID)):
        for bit in range(8):
            raw = bytearray(VALID)
            raw[position] ^= 1 << bit

            with pytest.raises(ModelFileError):
                FlyNNModel.from_bytes(bytes(raw))


def test_bytes_after_the_end_are_refused():
    with pytest.raises(ModelFileError, match="truncated or altered"):
        FlyNNModel.from_bytes(VALID + b"\0")


@settings(max_examples=cases(2_000))
@given(st.data())
def test_forged_files_are_refused_or_read_unchanged(data):
    frame = bytearray(encode(MODEL))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(frame) - 1))
        frame[position] = data.draw(st.integers(0, 255))
    model = None

    with contextlib.suppress(ModelFileError):
        model = FlyNNModel.from_bytes(file_of_frame(bytes(frame)))

    if model is not None:
        assert 0 <= model.gamma <= 1
        assert model.counts.min() >= 0
        assert list(model.classes) == sorted(set(model.classes))


@pytest.mark.parametrize(
    "change",
    [
        {"counts": np.zeros((2, 2), np.uint8)},
        {"counts": np.zeros((3, 3), np.uint8)},
        {"counts": np.zeros(6, np.uint8)},
        {"counts": np.full((3, 2), 2**31, np.uint32)},
        {"counts": np.full((3, 2), -1, np.int8)},  # negative without noise
        {"noise_variance": -1.0, "guarantee": "epsilon=1"},
        {"noise_variance": 2.0, "guarantee": ""},
        {"classes": ("b", "a")},
        {"classes": ("a", "a")},
        {"classes": (1, "a")},
        {"classes": (False, 1)},
        {"decay": 1.5},
        {"decay": -0.1},
        {"losses": np.zeros(3, np.int64)},
        {"feature_names": ("age",)},
        {"plan.features.expansion": "foo"},
        {"plan.features.n_features": 3},
        {"plan.features.n_features": -2},
        {"plan.features.mean": None},
        {"plan.features.mean": np.zeros(3)},
        {"plan.features.mean": np.array([0, np.nan])},
        {"plan.features.scale": np.array([1.0, 0.0])},
        {"plan.features.scale": np.array([1.0, -1.0])},
        {"plan.features.scale": np.array([1.0, np.inf])},
        {"plan.n_units": 2**40},
        {"plan.n_inputs": 0},
        {"plan.n_inputs": 5},
        {"plan.n_active": 4},
        {"plan.seed": -1},
    ],
    ids=str,
)
def test_a_model_that_contradicts_itself_is_refused(change):
    forged = alter_record(MODEL, change)

    with pytest.raises(ModelFileError, match="has no usable model"):
        FlyNNModel.from_bytes(file_of_frame(encode(forged)))


def test_versions_and_file_kinds_are_distinguished(tmp_path):
    (tmp_path / "old").write_bytes(b"FNMODEL1" + VALID[8:])
    (tmp_path / "text").write_text("age,weight\n1,2\n")
    (tmp_path / "empty").touch()

    with pytest.raises(
        ModelFileError, match=r"old has format version b'1', this release reads b'4'"
    ):
        FlyNNClassifier.load(tmp_path / "old")
    with pytest.raises(
        ModelFileError, match="text is not a fedneighbors model; expected a file from save"
    ):
        FlyNNClassifier.load(tmp_path / "text")
    with pytest.raises(ModelFileError, match="empty is not a fedneighbors model"):
        FlyNNClassifier.load(tmp_path / "empty")


@pytest.mark.parametrize(("name", "words"), [("none", "No such file"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, words):
    with pytest.raises(ModelFileError, match=f"cannot read the model .*: {words}"):
        FlyNNClassifier.load(tmp_path / name)


class Bomb:
    def __reduce__(self):
        return os.mkdir, (os.environ["BOMB"],)


def test_loading_a_pickle_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
    pickled = pickle.dumps(Bomb())
    (tmp_path / "a").write_bytes(pickled)
    (tmp_path / "b").write_bytes(file_of_frame(pickled))
    np.save(tmp_path / "c.npy", np.array([Bomb()]), allow_pickle=True)

    for name in ("a", "b", "c.npy"):
        with pytest.raises(ModelFileError):
            FlyNNClassifier.load(tmp_path / name)

    assert not (tmp_path / "exploded").exists()


# Failed saves.


@contextlib.contextmanager
def limit_file_size(n_bytes):
    """Limit the size of files, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failed_save_leaves_the_old_file_alone(tmp_path):
    model = FlyNNModel.from_bytes(VALID)
    (tmp_path / "m").write_bytes(b"old")

    with limit_file_size(len(VALID) - 1), pytest.raises(OSError, match="File too large"):
        model.save(tmp_path / "m")

    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("m", b"old")]


def test_a_failed_sync_to_disk_leaves_the_old_file(tmp_path, monkeypatch):
    def fail(_descriptor):
        raise OSError(28, "No space left on device")

    model = FlyNNModel.from_bytes(VALID)
    (tmp_path / "m").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(OSError, match="No space left"):
        model.save(tmp_path / "m")

    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("m", b"old")]


@pytest.mark.parametrize("folder", ["missing", "a file"])
def test_saving_without_a_folder_writes_nothing(tmp_path, folder):
    (tmp_path / "a file").write_bytes(b"old")

    with pytest.raises(OSError, match=folder):
        FlyNNModel.from_bytes(VALID).save(tmp_path / folder / "m")

    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a file", b"old")]


def test_frames_of_the_same_fields_are_the_same_bytes():
    copy = dataclasses.replace(MODEL, counts=np.asfortranarray(MODEL.counts))

    assert encode(copy) == encode(MODEL)


@pytest.mark.parametrize("standardize", [False, "feature", "global"])
def test_a_loaded_classifier_names_its_scaling(tmp_path, standardize):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 9)), np.arange(40) % 2
    FlyNNClassifier(n_units=50, n_active=4, standardize=standardize).fit(x, y).save(tmp_path / "m")

    loaded = FlyNNClassifier.load(tmp_path / "m")

    assert loaded.standardize == standardize
