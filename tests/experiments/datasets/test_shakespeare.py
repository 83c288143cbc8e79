"""Windows of the speeches of Shakespeare's roles."""

import gzip

import numpy as np
import pytest

from experiments.datasets.catalog import load
from experiments.datasets.shakespeare import (
    SPEECHES_FILE,
    decode_tokens,
    encode_text,
    load_roles,
    read_speeches,
    roles_size,
    split_windows,
)
from fedneighbors.errors import DataError, MissingDataError
from fedneighbors.neural._architectures import ALPHABET

PLAYS = """play,speaker,text
hamlet,OPHELIA,"O, what a noble mind / is here o'erthrown!"
hamlet,HAMLET,"Words, words, words."
hamlet,,Enter a ghost
hamlet,OPHELIA,My lord
othello,HAMLET,No.
"""


def write_plays(folder, text=PLAYS):
    path = folder / SPEECHES_FILE
    path.parent.mkdir()
    path.write_bytes(gzip.compress(text.encode()))
    return folder


def test_a_role_has_its_speeches_in_order(tmp_path):
    speeches = read_speeches(write_plays(tmp_path))

    assert speeches == {
        "hamlet/OPHELIA": "O, what a noble mind\nis here o'erthrown!\nMy lord",
        "hamlet/HAMLET": "Words, words, words.",
        "othello/HAMLET": "No.",
    }


def test_rows_are_windows_and_labels_the_next_character(tmp_path):
    data = load_roles(write_plays(tmp_path), length=5, stride=3, min_rows=5)

    assert sorted(set(data.parties.tolist())) == ["hamlet/HAMLET", "hamlet/OPHELIA"]
    is_hamlet = data.parties == "hamlet/HAMLET"
    examples = [
        (decode_tokens(x), decode_tokens(y))
        for x, y in zip(data.x[is_hamlet], data.y[is_hamlet], strict=True)
    ]
    assert examples == [
        ("Words", ","),
        ("ds, w", "o"),
        (" word", "s"),
        ("rds, ", "w"),
        (", wor", "d"),
    ]


def test_every_character_has_its_own_token():
    assert len(set(ALPHABET)) == len(ALPHABET) == 80
    assert decode_tokens(encode_text(ALPHABET)) == ALPHABET
    with pytest.raises(DataError, match=r"characters of the alphabet .*; replace them"):
        encode_text("caf\u00e9")


@pytest.mark.parametrize(("n", "length", "stride"), [(0, 3, 1), (3, 3, 1), (4, 3, 1), (20, 3, 4)])
def test_windows_equal_those_of_a_naive_loop(n, length, stride):
    tokens = np.arange(n, dtype=np.uint8)

    x, y = split_windows(tokens, length=length, stride=stride)

    starts = range(0, n - length, stride)
    assert x.tolist() == [tokens[b : b + length].tolist() for b in starts]
    assert y.tolist() == [b + length for b in starts]
    assert x.shape == (len(y), length)


@pytest.mark.parametrize("options", [{"length": 0}, {"stride": 0}])
def test_a_length_or_stride_below_one_is_refused(options):
    with pytest.raises(ValueError, match="length and stride of 1 or more"):
        split_windows(np.zeros(9, np.uint8), **options)


def test_missing_or_other_files_are_refused(tmp_path):
    with pytest.raises(MissingDataError, match=r"no file .*shakespeare_bosak8"):
        read_speeches(tmp_path)

    write_plays(tmp_path, "play,text\nhamlet,Words\n")

    with pytest.raises(DataError, match="speaker"):
        load_roles(tmp_path)


def test_short_roles_are_dropped(tmp_path):
    with pytest.raises(DataError, match=r"no role of .* has 100 windows of 80 characters"):
        load_roles(write_plays(tmp_path))


def test_the_real_plays_have_227_long_roles(data_folder):
    data = load("shakespeare")

    assert roles_size(data_folder) == (data.n_rows, data.n_features, data.n_classes)
    assert (data.x.shape, data.x.dtype) == ((907_832, 80), np.uint8)
    roles, rows = np.unique(data.parties, return_counts=True)
    assert (len(roles), rows.min() >= 100) == (227, True)
    is_ophelia = data.parties == "hamlet/OPHELIA"
    x, y = data.x[is_ophelia], data.y[is_ophelia]
    assert np.array_equal(x[1:, :-1], x[:-1, 1:])
    assert np.array_equal(x[1:, -1], y[:-1])
