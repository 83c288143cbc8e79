"""Compressed memories in files: they are read back equal, and stay small."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits, load_wine

from fedneighbors.errors import ModelFileError, RebuildNeeded
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper._model import KNNPerModel
from fedneighbors.methods.knnper._records import memory_record, read_memory
from fedneighbors.methods.knnper._settings import MEMORY_KINDS, MemorySettings
from fedneighbors.methods.knnper.memory._codes import Codebook
from fedneighbors.tabular._model_file import decode_model, encode_model
from tests.methods.knnper.memory.tables import tables
from tests.methods.knnper.tampering import alter_file, alter_record

X, Y = load_wine(return_X_y=True)
PARTIES = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")
QUICK = {"hidden": (16, 8), "n_rounds": 2}
SMALL = [kind for kind in MEMORY_KINDS if kind != "exact"]
OVERALL = np.full(3, 1 / 3)


def memory_bytes(memory):
    return encode_model(b"M", memory_record(memory))


def apply_to_each(models, action):
    """Return "done" or the message of the error for each model."""
    outcomes = []
    for model in models:
        try:
            action(model)
            outcomes.append("done")
        except RebuildNeeded as error:
            outcomes.append(str(error))
    return outcomes


@pytest.mark.parametrize(
    "parameters",
    [
        {"memory": "8-bit"},
        {"memory": "8-bit", "combine": "pool"},
        {"memory": "8-bit", "strategy": "reservoir", "capacity": 20},
        {"memory": "8-bit", "strategy": "drift", "capacity": 50, "metric": "cosine"},
        {"memory": "product"},
        {"memory": "product", "combine": "pool", "strategy": "fifo", "capacity": 40},
        {"memory": "centers"},
        {"memory": "centers", "combine": "pool", "n_neighbors": (2, 9)},
    ],
    ids=lambda parameters: "-".join(map(str, parameters.values())),
)
def test_a_loaded_compressed_model_behaves_the_same(parameters, tmp_path):
    fitted = KNNPerClassifier(**QUICK, **parameters).fit(X, Y, parties=PARTIES)
    fitted.save(tmp_path / "a")
    loaded = KNNPerClassifier.load(tmp_path / "a")

    assert loaded.memory == parameters["memory"]
    assert loaded.predict_proba(X, PARTIES).tobytes() == fitted.predict_proba(X, PARTIES).tobytes()
    for action in (
        lambda model: model.update("north", X[::-1][:40], Y[::-1][:40]),
        lambda model: model.add_client("east", X[::5], Y[::5]),
        lambda model: model.forget(
            "south", getattr(model.clients_["south"].memory, "ids", ["0"])[:3]
        ),
    ):
        after_loading, without_loading = apply_to_each((loaded, fitted), action)
        assert after_loading == without_loading
    for model in (fitted, loaded):
        model.save(tmp_path / f"{model is fitted}")
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()
    assert loaded.predict_proba(X, PARTIES).tobytes() == fitted.predict_proba(X, PARTIES).tobytes()


def test_files_are_as_small_as_their_memories():
    digits, labels = load_digits(return_X_y=True)
    owner = np.arange(len(labels)) % 3
    model = KNNPerClassifier(hidden=(128,), n_rounds=1)
    sizes, memories = {}, {}

    for kind in MEMORY_KINDS:
        model.set_params(memory=kind).fit(digits / 16, labels, parties=owner)
        sizes[kind] = len(save_to_bytes(model)) - model.weights_.nbytes
        memories[kind] = sum(client.memory.nbytes for client in model.clients_.values())
    model.set_params(memory="exact").fit(digits / 16, labels, parties=owner)
    model.share_codebook(digits[:300] / 16)
    shared = len(save_to_bytes(model)) - model.weights_.nbytes - model.codebook_.nbytes

    overhead = 4000  # settings of the model and of three clients, and states of their memories
    assert sizes["exact"] > len(labels) * (128 * 4 + 8)
    for kind in SMALL:
        assert memories[kind] < sizes[kind] < memories[kind] + overhead
    assert len(labels) * 9 < shared < len(labels) * 9 + overhead
    assert sizes["exact"] > 32 * shared


def save_to_bytes(model, **options):
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        model.save(f"{folder}/m", **options)
        with open(f"{folder}/m", "rb") as file:
            return file.read()


def test_custom_row_names_are_read_back(tmp_path):
    fitted = KNNPerClassifier(**QUICK, memory="8-bit").fit(X, Y, parties=PARTIES)
    fitted.forget("south", ["1"]).update("south", X[:2], Y[:2], ids=["07", "ä"])

    fitted.save(tmp_path / "m")
    loaded = KNNPerClassifier.load(tmp_path / "m")

    ids = loaded.clients_["south"].memory.ids
    assert ids == ["0", *map(str, range(2, 60)), "07", "ä"]
    assert ids == fitted.clients_["south"].memory.ids


def test_a_client_file_has_only_its_own_codes(tmp_path):
    fitted = KNNPerClassifier(**QUICK, memory="8-bit").fit(X, Y, parties=PARTIES)

    raw = save_to_bytes(fitted, client="north")

    north, south = (fitted.clients_[name].memory.codes for name in ("north", "south"))
    assert north.tobytes() in raw
    assert not any(code.tobytes() in raw for code in south)
    assert not any(key.astype(np.float32).tobytes() in raw for key in fitted.embed(X)[0])


@given(tables(width=4), st.sampled_from(SMALL), st.integers(0, 12))
@settings(max_examples=40, deadline=None)
def test_any_memory_is_read_back_equal(rows, kind, n_first):
    memory_settings = MemorySettings(memory=kind)
    memory = MemorySettings(memory=kind).new_memory(4, 3)
    if len(rows[:n_first]):
        memory.add(rows[:n_first], np.arange(len(rows[:n_first])) % 3)

    record = memory_record(memory)
    loaded = read_memory(
        decode_model(b"M", memory_bytes(memory), type(record), source="m"), memory_settings, OVERALL
    )

    assert memory_bytes(loaded) == memory_bytes(memory)
    assert (len(loaded), loaded.nbytes) == (len(memory), memory.nbytes)
    votes = [instance.votes(rows, 3, n_neighbors=2) for instance in (memory, loaded)]
    assert (votes[0] is None) == (votes[1] is None) == (len(memory) == 0)
    if len(memory):
        assert votes[0].tobytes() == votes[1].tobytes()


@pytest.fixture(scope="module")
def records():
    """Return a record of each kind, of memories of the same rows."""
    rows = np.random.default_rng(0).normal(size=(20, 4))
    return {
        kind: memory_record(
            MemorySettings(memory=kind).new_memory(4, 3).add(rows, np.arange(20) % 3)
        )
        for kind in SMALL
    }


@given(st.sampled_from(SMALL), st.data())
@settings(max_examples=200, deadline=None)
def test_an_altered_frame_is_refused_or_gives_valid_votes(records, kind, data):
    frame = bytearray(encode_model(b"M", records[kind])[33:])
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] = data.draw(st.integers(0, 255))
    raw = b"M" + hashlib.sha256(frame).digest() + bytes(frame)

    try:
        record = decode_model(b"M", raw, type(records[kind]), source="m")
        memory = read_memory(record, MemorySettings(memory=kind), OVERALL)
    except (ModelFileError, ValueError):
        return
    with np.errstate(over="ignore"):
        votes = memory.votes(np.ones((2, memory.n_dimensions)), 3, n_neighbors=3)
    np.testing.assert_allclose(votes.sum(axis=1), 1, rtol=1e-9)


def make_codebook(n_stretches, n_entries):
    return Codebook(np.zeros((n_stretches, n_entries, 1), np.float32), n_stretches)


IMPOSSIBLE = [
    ("8-bit", {"keys": np.zeros((20, 11), np.uint8)}, "codes of 12 bytes per row"),
    ("8-bit", {"keys": np.zeros(20, np.uint8)}, "codes of 12 bytes per row"),
    ("8-bit", {"keys": np.full((20, 12), 255, np.uint8)}, "scale of a code is not finite"),
    ("8-bit", {"keys": np.full((20, 12), 190, np.uint8)}, "scale of a code is not finite, or"),
    ("8-bit", {"keys": np.zeros((0, 12), np.uint8)}, "a label for each of 0 codes"),
    ("8-bit", {"keys": np.zeros((20, 12))}, "wrong type or shape"),
    ("8-bit", {"n_dimensions": 5}, "codes of 13 bytes per row"),
    ("8-bit", {"n_dimensions": 0}, "keys without coordinates"),
    ("8-bit", {"labels": np.full(20, 3, np.uint8)}, "not among the classes"),
    ("8-bit", {"labels": np.full(20, -1)}, "not among the classes"),
    ("8-bit", {"labels": np.zeros(20)}, "are not class indices"),
    ("8-bit", {"labels": np.zeros((20, 1), np.uint8)}, "are not class indices"),
    ("8-bit", {"ids": "-1"}, "not a list of texts"),
    ("8-bit", {"ids": "true"}, "not a list of texts"),
    ("8-bit", {"ids": '["a"]'}, "a name for each"),
    ("8-bit", {"ids": "[" * 100_000}, "nested too deeply"),
    ("8-bit", {"ids": json.dumps(["a"] * 20)}, "expected new names"),
    ("8-bit", {"state": "[]"}, "expected the state of a memory"),
    ("8-bit", {"state": "{}"}, "expected the state of a memory"),
    ("8-bit", {"book": make_codebook(4, 9)}, "but its codes use another"),
    ("product", {"keys": np.zeros((20, 4), np.uint8)}, "codes of 2 bytes per row"),
    ("product", {"book": None}, "codes have no codebook"),
    ("product", {"book": make_codebook(5, 16)}, "expected a codebook of keys of width 4"),
    ("product", {"book": make_codebook(4, 3)}, "index beyond the codebook"),
    ("product", {"book": make_codebook(4, 17)}, "at most 16 entries"),
    ("centers", {"counts": np.zeros(3, np.uint8)}, "must be 1 or more"),
    ("centers", {"counts": np.full(3, 1 << 62, np.uint64)}, "must be 1 or more and sum to less"),
    ("centers", {"counts": np.ones(2, np.uint8)}, "expected 3 counts"),
    ("centers", {"classes": np.full(3, 3, np.uint8)}, "expected classes from 0 to 2"),
    ("centers", {"classes": np.zeros(2, np.uint8)}, "a class for each center"),
    ("centers", {"codes": np.full((3, 12), 255, np.uint8)}, "scale of a code is not finite"),
]


@pytest.mark.parametrize(
    ("kind", "changed", "words"),
    IMPOSSIBLE,
    ids=[f"{kind}-{next(iter(changed))}-{i}" for i, (kind, changed, _) in enumerate(IMPOSSIBLE)],
)
def test_an_impossible_memory_is_refused(records, kind, changed, words):
    with pytest.raises(ValueError, match=words):
        read_memory(alter_record(records[kind], changed), MemorySettings(memory=kind), OVERALL)


def test_a_memory_of_another_kind_is_refused(records):
    with pytest.raises(ValueError, match="does not match memory='centers'"):
        read_memory(records["8-bit"], MemorySettings(memory="centers"), OVERALL)


def test_wide_labels_are_stored_in_fewer_bytes(records):
    record = records["8-bit"]
    widened = alter_record(record, {"labels": record.labels.astype(np.int64)})

    memory = read_memory(widened, MemorySettings(memory="8-bit"), OVERALL)

    assert memory_bytes(memory) == encode_model(b"M", record)


def test_features_of_rows_with_codes_are_refused(records):
    record = records["8-bit"]
    with_features = alter_record(record, {"extras": (np.zeros((len(record.keys), 1)),)})

    with pytest.raises(ValueError, match="a memory of codes has some"):
        read_memory(with_features, MemorySettings(memory="8-bit"), OVERALL)


def test_impossible_counts_of_drift_detection_are_refused(records):
    memory_settings = MemorySettings(memory="8-bit", strategy="drift")
    record = records["8-bit"]
    for surprises in ([[[-1, 2, 0], 0]], [[[1, 2, 0], 4]], [[[1, 2, 0], -1]], [[[1], 0]], 3):
        state = {**json.loads(record.state), "surprises": surprises}

        with pytest.raises(ValueError, match="expected"):
            read_memory(
                alter_record(record, {"state": json.dumps(state)}), memory_settings, OVERALL
            )


@pytest.fixture(scope="module")
def shared_raw():
    model = KNNPerClassifier(**QUICK).fit(X, Y, parties=PARTIES)
    return save_to_bytes(model.share_codebook(X[:50], n_stretches=2, bits=4))


def test_a_shared_codebook_is_stored_once(shared_raw):
    model = KNNPerModel.from_bytes(shared_raw)

    assert shared_raw.count(model.settings.codec.book.entries.tobytes()) == 1
    assert [client.memory.book for client in model.clients.values()] == [None, None]
    assert [client.settings.codec for client in model.clients.values()] == [None, None]


CODEC, BOOK = "settings.codec", "settings.codec.book"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({f"{BOOK}.entries": np.full((2, 16, 4), np.inf, np.float32)}, "not finite"),
        ({f"{BOOK}.entries": np.zeros((2, 17, 4), np.float32)}, "at most 16 entries"),
        ({f"{BOOK}.entries": np.zeros((2, 2, 4), np.float32)}, "beyond the codebook"),
        ({f"{BOOK}.entries": np.zeros((3, 16, 4), np.float32)}, "cover a key of width 8"),
        ({f"{BOOK}.entries": np.zeros((2, 0, 4), np.float32)}, "three axes"),
        ({f"{BOOK}.entries": np.zeros((2, 16), np.float32)}, "three axes"),
        ({f"{BOOK}.n_dimensions": 7}, "expected a codebook of keys of width 8"),
        ({f"{BOOK}.n_dimensions": -8}, "cover a key"),
        ({f"{CODEC}.bits": 8}, "codes of 2 bytes per row"),
        ({"settings.memory": "8-bit"}, "codec needs a shared codebook"),
        ({CODEC: None}, "codes have no codebook"),
    ],
    ids=lambda changed: next(iter(changed)) if isinstance(changed, dict) else "",
)
def test_an_impossible_shared_codebook_is_refused(shared_raw, changed, words, tmp_path):
    (tmp_path / "m").write_bytes(alter_file(shared_raw, changed))

    with pytest.raises(ModelFileError, match=words):
        KNNPerClassifier.load(tmp_path / "m")


def test_invalid_bits_are_not_written(shared_raw):
    with pytest.raises(TypeError, match=r"ProductCodec\.bits is declared as"):
        alter_file(shared_raw, {f"{CODEC}.bits": 5})


def test_altered_codes_in_a_model_file_are_refused(shared_raw, tmp_path):
    path = tmp_path / "m"
    for place in (40, len(shared_raw) // 2, len(shared_raw) - 1):
        path.write_bytes(
            shared_raw[:place] + bytes([shared_raw[place] ^ 1]) + shared_raw[place + 1 :]
        )
        with pytest.raises(ModelFileError, match="truncated or altered"):
            KNNPerClassifier.load(path)


def test_a_shared_codec_needs_product_codes():
    settings = MemorySettings()

    with pytest.raises(ValueError, match="codec needs a shared codebook"):
        replace(settings, memory="8-bit", codec=codec_without_book())
    with pytest.raises(ValueError, match="a shared codebook"):
        replace(settings, memory="product", codec=codec_without_book())


def codec_without_book():
    from fedneighbors.methods.knnper.memory._codes import ProductCodec

    return ProductCodec(8, 8)
