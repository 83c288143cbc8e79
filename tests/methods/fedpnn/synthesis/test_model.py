import hashlib
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedneighbors.errors import ModelFileError
from fedneighbors.methods.fedpnn.synthesis import TabularSynthesizer
from fedneighbors.methods.fedpnn.synthesis._model import SynthesisModel
from tests.seeds import cases

SMALL = {"generator": (4,), "critic": (4,), "epochs": 1, "embedding": 4, "min_count": 3}


def make_rows():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=40), "b": rng.choice(["x", "y"], 40), "c": 1.5})
    frame.loc[::4, "a"] = np.nan
    return frame, rng.integers(0, 12, 40) % 11 // 4


def fitted(per_class=True):
    x, y = make_rows()
    return TabularSynthesizer(**SMALL, per_class=per_class).fit(x, y)


VALID = fitted().model_.to_bytes()


def model_file(content):
    """Return a model file with this content and a correct checksum."""
    return b"FNSYNTH2" + hashlib.sha256(content).digest() + content


@pytest.mark.parametrize("per_class", [True, False])
def test_loaded_synthesizer_samples_the_same_rows(tmp_path, per_class):
    synthesizer = fitted(per_class)

    synthesizer.save(tmp_path / "model")
    loaded = TabularSynthesizer.load(tmp_path / "model")

    for y in (None, 1):
        a, b = synthesizer.sample(9, y), loaded.sample(9, y)
        assert a[0].equals(b[0])
        assert (a[1] == b[1]).all()
    assert loaded.per_class is per_class
    assert loaded.n_features_in_ == 3
    assert loaded.feature_names_in_.tolist() == ["a", "b", "c"]
    assert loaded.model_.to_bytes() == synthesizer.model_.to_bytes()


def test_model_without_labels_survives_a_round_trip(tmp_path):
    x = np.random.default_rng(1).normal(size=(30, 2))
    synthesizer = TabularSynthesizer(
        **{**SMALL, "min_count": None}, noise="concat", categorical_features=[1]
    ).fit(x)

    synthesizer.save(tmp_path / "model")
    loaded = TabularSynthesizer.load(tmp_path / "model")

    assert (loaded.sample(8) == synthesizer.sample(8)).all()
    assert loaded.noise == "concat"
    assert not hasattr(loaded, "classes_")


def test_model_file_contains_no_training_rows():
    x = np.random.default_rng(2).normal(size=(300, 1))

    raw = TabularSynthesizer(**SMALL).fit(x).model_.to_bytes()

    assert not any(value.tobytes() in raw for value in x.ravel())


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is not a fedneighbors model"),
        (b"FNMODEL2" + VALID[8:], "is not a fedneighbors model"),
        (b"FNSYNTH9" + VALID[8:], "has format version b'9'"),
        (VALID[:-1], "is truncated or altered"),
        (VALID[:100] + bytes([VALID[100] ^ 1]) + VALID[101:], "is truncated or altered"),
        (model_file(VALID[40:-1]), "has no usable model"),
    ],
    ids=["empty", "another model", "version", "truncated", "altered", "short content"],
)
def test_invalid_files_are_rejected(raw, message):
    with pytest.raises(ModelFileError, match=message):
        SynthesisModel.from_bytes(raw)


def test_missing_file_is_rejected(tmp_path):
    with pytest.raises(ModelFileError, match=r"cannot read the model .*gone"):
        TabularSynthesizer.load(tmp_path / "gone")


@settings(max_examples=cases(150))
@given(st.integers(40, len(VALID) - 1), st.integers(0, 255))
@example(148, 43)  # counts beyond 2**53
@example(148, 64)
def test_changed_byte_gives_a_working_model_or_an_error(place, byte):
    content = bytearray(VALID)
    content[place] = byte

    try:
        model = SynthesisModel.from_bytes(model_file(bytes(content[40:])))
    except ModelFileError:
        return
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        table, positions = model.sample_labeled(3, 0, None)
    assert table.n_rows == len(positions) == 3
