"""A small file that expands to a large table is refused before much memory is allocated."""

import bz2
import gzip
import lzma
import tracemalloc

import numpy as np
import pytest

from fedneighbors.datasets import Schema, _files, read_table
from fedneighbors.datasets._files import MAX_RATIO, MAX_XZ_RATIO, read_lines
from fedneighbors.datasets._reading import read_rows
from fedneighbors.errors import DataError

MAX_PEAK = 64 << 20
SCHEMA = Schema.from_toml('[columns.a]\nkind = "number"\n')
READERS = [lambda path: read_table(path, label="y"), lambda path: read_rows(path, SCHEMA)]


def raises_refusal():
    return pytest.raises(DataError, match=r"expands to more than|every row needs")


@pytest.fixture
def low_limits(monkeypatch):
    monkeypatch.setattr(_files, "MIN_LIMIT", 4096)
    monkeypatch.setattr(_files, "MAX_RATIO", 20)
    monkeypatch.setattr(_files, "MAX_XZ_RATIO", 20)


@pytest.mark.slow
@pytest.mark.parametrize("read", READERS, ids=["free", "declared"])
@pytest.mark.parametrize("line", [b"1,1\n", b"1\n", b"\n"], ids=["rows", "ragged", "blank"])
def test_a_table_of_3_kb_takes_little_memory(tmp_path, read, line):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a,y\n1,1\n" + line * (3_000_000 // len(line))))
    assert path.stat().st_size < 9000
    tracemalloc.start()
    try:
        with raises_refusal():
            read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MAX_PEAK


@pytest.mark.usefixtures("low_limits")
@pytest.mark.parametrize("read", READERS, ids=["free", "declared"])
@pytest.mark.parametrize("line", [b"1,1\n", b"1\n", b"\n"], ids=["rows", "ragged", "blank"])
def test_a_gzipped_table_that_expands_much_is_refused(tmp_path, read, line):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a,y\n1,1\n" + line * (400_000 // len(line))))

    with raises_refusal():
        read(path)


@pytest.mark.usefixtures("low_limits")
@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
def test_compressed_lines_that_expand_much_are_refused(tmp_path, compress):
    endings = {gzip.compress: "gz", lzma.compress: "xz", bz2.compress: "bz2"}
    path = tmp_path / f"lines.{endings[compress]}"
    path.write_bytes(compress(b"a\n" * 200_000))

    with raises_refusal():
        read_lines(path)


@pytest.mark.parametrize("read", READERS, ids=["free", "declared"])
@pytest.mark.parametrize("cell", [0, True, None, "x" * 2000], ids=["int", "bool", "null", "text"])
def test_a_parquet_table_that_expands_much_is_refused(tmp_path, read, cell):
    import pyarrow
    from pyarrow import parquet

    path, n = tmp_path / "t.parquet", 5_000_000
    values = pyarrow.array([cell])
    repeated = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(n, np.int8)), values)
    column = pyarrow.nulls(n) if cell is None else repeated
    parquet.write_table(pyarrow.table({"a": column, "y": column}), path, compression="zstd")

    with raises_refusal():
        read(path)


def test_ordinary_compressed_tables_are_read(tmp_path):
    path = tmp_path / "t.csv.gz"
    rows = b"".join(b"%d,%d\n" % (k % 7, k % 2) for k in range(3000))
    path.write_bytes(gzip.compress(b"a,y\n" + rows))

    assert len(rows) < MAX_RATIO * path.stat().st_size
    assert read_table(path, label="y").x.shape == (3000, 1)


def test_nearly_equal_genomes_are_read(tmp_path):
    rng = np.random.default_rng(0)
    genome = rng.choice(list("acgt"), 10_000)
    genomes = []
    for _ in range(200):
        genome[rng.integers(len(genome))] = "a"
        genomes.append("".join(genome))
    path = tmp_path / "genomes.txt.xz"
    path.write_bytes(lzma.compress("\n".join(genomes).encode()))

    ratio = 200 * 10_001 / path.stat().st_size

    assert MAX_RATIO < ratio < MAX_XZ_RATIO
    assert read_lines(path) == genomes


def test_equal_lines_of_an_xz_file_are_refused(tmp_path):
    path = tmp_path / "bomb.txt.xz"
    path.write_bytes(lzma.compress(b"acgt\n" * 1_000_000))

    with raises_refusal():
        read_lines(path)
