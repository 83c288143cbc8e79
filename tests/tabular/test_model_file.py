"""Model files are read back equal; damaged and foreign files are refused."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.errors import ModelFileError
from fedneighbors.tabular._model_file import ModelFile, decode_model, encode_model

MAGIC = b"FNTEST01"


@dataclass(frozen=True)
class Leaf:
    weight: float
    width: int = 1

    def __post_init__(self):
        if self.weight < 0:
            raise ValueError("a weight is below 0")


@dataclass(frozen=True)
class Table:
    cells: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Tree(ModelFile):
    magic = MAGIC

    name: str
    root: Leaf | Table
    spare: Leaf | None = None
    leaves: tuple[Leaf, ...] = ()
    named: Mapping[str, Leaf | Table] = field(default_factory=dict)
    labels: tuple[str | int, ...] = ()


FULL = Tree(
    "oak",
    Leaf(0.5),
    Leaf(2.0, 3),
    (Leaf(1.0), Leaf(2.0)),
    {"a": Leaf(0.0), "b": Leaf(7.5)},
    (1, "x"),
)


def test_a_model_is_read_back_equal(tmp_path):
    FULL.save(tmp_path / "m")

    assert Tree.load(tmp_path / "m") == FULL
    assert Tree.from_bytes(FULL.to_bytes()) == FULL
    assert FULL.to_bytes()[:8] == MAGIC


def test_arrays_are_read_bit_for_bit_and_read_only():
    cells = np.array([[1.5, np.nan]], np.float32)

    loaded = Tree.from_bytes(Tree("t", Table(cells), named={"u": Table(cells)}).to_bytes())

    assert loaded.root.cells.tobytes() == loaded.named["u"].cells.tobytes() == cells.tobytes()
    assert loaded.root.cells.dtype == np.float32
    assert not loaded.root.cells.flags.writeable


def test_integers_are_accepted_for_float_fields():
    assert Tree.from_bytes(Tree("t", Leaf(1)).to_bytes()).root.weight == 1.0


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3},
        {"root": None},
        {"root": Leaf(np.float64(1), "x")},
        {"leaves": (None,)},
        {"labels": (1.5,)},
    ],
    ids=str,
)
def test_a_value_of_another_type_is_not_written(change):
    tree = object.__new__(Tree)
    for name, value in (vars(FULL) | change).items():
        object.__setattr__(tree, name, value)

    with pytest.raises(TypeError):
        tree.to_bytes()


def unchecked_leaf(**values):
    leaf = object.__new__(Leaf)
    for name, value in values.items():
        object.__setattr__(leaf, name, value)
    return leaf


def test_values_are_validated_on_reading():
    raw = replace(FULL, spare=unchecked_leaf(weight=-1.0, width=1)).to_bytes()

    with pytest.raises(ModelFileError, match="no usable model: Leaf: a weight is below 0"):
        Tree.from_bytes(raw, source="my file")


@dataclass(frozen=True)
class Other:
    weight: float
    width: int


def test_a_model_of_another_class_is_refused():
    other = encode_model(MAGIC, Other(1.0, 1))

    with pytest.raises(ModelFileError, match="unexpected message 'Other'"):
        Tree.from_bytes(other)
    assert decode_model(MAGIC, other, Other, source="m") == Other(1.0, 1)


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_an_altered_byte_is_refused(index, byte):
    raw = bytearray(FULL.to_bytes())
    before, index = bytes(raw), index % len(raw)
    raw[index] = byte

    if bytes(raw) != before:
        with pytest.raises(ModelFileError):
            Tree.from_bytes(bytes(raw))


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_forged_frame_with_a_valid_digest_does_not_crash(changes):
    frame = bytearray(FULL.to_bytes()[len(MAGIC) + 32 :])
    for index, byte in changes:
        frame[index % len(frame)] = byte

    try:
        loaded = Tree.from_bytes(MAGIC + hashlib.sha256(frame).digest() + bytes(frame))
    except ModelFileError:
        return
    assert isinstance(loaded, Tree)


def test_versions_and_file_kinds_are_distinguished():
    raw = FULL.to_bytes()

    with pytest.raises(ModelFileError, match=r"version b'2', this release reads b'1'"):
        Tree.from_bytes(raw[:7] + b"2" + raw[8:])
    for foreign in (b"", b"PK" + raw):
        with pytest.raises(ModelFileError, match="is not a fedneighbors model"):
            Tree.from_bytes(foreign)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"cannot read the model .*: No such file"):
        Tree.load(tmp_path / "none")
