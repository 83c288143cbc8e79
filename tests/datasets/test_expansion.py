"""No file of 3 KB takes more than 64 MB, whatever its reader; a hostile one has one typed error."""

import bz2
import gzip
import io
import lzma
import tracemalloc
import zipfile
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from fedneighbors.datasets import Schema, _catalog, read_table
from fedneighbors.datasets._files import MAX_RATIO, MAX_XZ_RATIO, MIN_LIMIT
from fedneighbors.datasets._graphs import read_graphs
from fedneighbors.datasets._objects import read_objects
from fedneighbors.datasets._reading import read_columns, read_rows
from fedneighbors.errors import DataError, LedgerError, ModelFileError, RecordError
from fedneighbors.partition import Manifest
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.records import read_record
from fedneighbors.runs._audited_node import CONFIGURATION, AuditedNode
from fedneighbors.secure_sum import Identity, Roster
from fedneighbors.tabular._model_file import decode_model, encode_model
from tests.fuzz.mutation import reseal

MAX_PEAK = 64 << 20
SCHEMA = Schema.from_toml('[columns.a]\nkind = "number"\n')


def peak_of(read, path):
    """Return the peak of memory while a file is read, and its content or error."""
    tracemalloc.start()
    try:
        found = read(path)
    except (DataError, LedgerError, ModelFileError, RecordError, ValueError) as error:
        found = error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak, found


def read_images(path):
    path.parent.joinpath("images").mkdir(exist_ok=True)
    path.rename(path.parent / _catalog._IMAGE_FILES["mnist"])
    return _catalog._load_images("mnist", path.parent)


def read_node(path):
    path.rename(path.with_name(CONFIGURATION))
    return AuditedNode(path.parent, path.parent)


def images(header=None, kind=zipfile.ZIP_DEFLATED, size=0):
    """Return a file of arrays; one begins with ``header``."""
    content = {"x_train": np.zeros((2, 784), np.uint8), "x_test": np.zeros((2, 784), np.uint8)}
    content |= {"y_train": np.zeros(2, int), "y_test": np.zeros(2, int)}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, array in content.items():
            part = io.BytesIO()
            np.save(part, array)
            raw = part.getvalue()
            if name == "y_train" and header is not None:
                raw = header + bytes(size)
            archive.writestr(f"{name}.npy", raw)
    return file.getvalue()


def array_header(shape, kind="<i8"):
    file = io.BytesIO()
    fields = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()


MAGIC = b"TEST\x01"


@dataclass
class Cells:
    """Record of a model file."""

    values: npt.NDArray[np.float64]


def array_model(n_cells):
    """Return a model file with a valid checksum whose array states ``n_cells`` cells."""
    raw = encode_model(MAGIC, Cells(np.zeros(3)))
    size = (3).to_bytes(8, "little")
    assert raw.count(size) == 1
    return reseal(raw.replace(size, n_cells.to_bytes(8, "little")), len(MAGIC))


def read_model(path):
    return decode_model(MAGIC, path.read_bytes(), Cells, source="the file")


LONG_HEADER = b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little")
DEEP = b"[" * 3000
HOSTILE = {
    "array of 8 TB": (images(array_header((2**40,))), read_images, DataError),
    "array of nothing": (images(array_header((2**40, 0))), read_images, DataError),
    "array of empty texts": (images(array_header((2**40,), "<U0")), read_images, DataError),
    "array of objects": (images(array_header((1,), "|O")), read_images, DataError),
    "array header of 2 GB": (images(LONG_HEADER, size=9), read_images, DataError),
    "array of 4 GB in bzip2": (
        lambda: images(array_header((2**29,)), zipfile.ZIP_BZIP2, 300 << 20),  # takes seconds
        read_images,
        DataError,
    ),
    "deep node.toml": (b"a = " + DEEP, read_node, DataError),
    "digits in node.toml": (b"a = " + b"9" * 5000, read_node, DataError),
    "deep schema.toml": (b"a = " + DEEP, Schema.load, DataError),
    "deep manifest": (DEEP, lambda path: Manifest.from_json(path.read_text()), DataError),
    "deep roster": (DEEP, Roster.read, ValueError),
    "deep record": (DEEP, read_record, RecordError),
    "no key": (b"-----BEGIN PRIVATE KEY-----\n" + b"A" * 2900, Identity.read, ValueError),
    "model with an array of 8 TB": (array_model(2**40), read_model, ModelFileError),
    "ledger of many pages": (
        b"SQLite format 3\0" + b"\0\1" + bytes(10) + b"\xff" * 4 + bytes(2968),
        lambda path: Ledger(path).close(),
        LedgerError,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_of_3_kb_is_refused_in_little_memory(tmp_path, name):
    raw, read, error = HOSTILE[name]
    raw = raw() if callable(raw) else raw
    assert len(raw) < 6000
    path = tmp_path / "file"
    path.write_bytes(raw)
    path.chmod(0o600)

    peak, found = peak_of(read, path)

    assert isinstance(found, error), found
    assert peak < MAX_PEAK


def test_compressed_arrays_are_read(tmp_path):
    (tmp_path / "file").write_bytes(images())

    assert read_images(tmp_path / "file").x.shape == (4, 784)


SIZE = 3000


def largest(head, line, compress):
    """Return a compressed file of 3 kB with the most equal lines that is not refused."""
    ratio = MAX_XZ_RATIO if compress is lzma.compress else MAX_RATIO
    n_lines = (MIN_LIMIT + ratio * SIZE - len(head)) // len(line)
    raw, empty = compress(head + line * n_lines), compress(b"")
    return raw + empty * max(0, -(-(SIZE - len(raw)) // len(empty)))  # pad with empty streams


COMPRESS = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}
READERS = {
    "csv": lambda path: read_table(path, label="y"),
    "columns.csv": read_columns,
    "declared.csv": lambda path: read_rows(path, SCHEMA),
    "arff": read_columns,
    "declared.arff": lambda path: read_rows(path, SCHEMA),
    "jsonl": lambda path: read_rows(path, SCHEMA),
    "sets.txt": lambda path: read_objects(path, "sets"),
    "strings.txt": lambda path: read_objects(path, "strings"),
    "graph": read_graphs,
}
LARGEST = [
    ("csv", b"a,y\n1,1\n", b"ab,y\n", "gz"),
    ("columns.csv", b"a\n", b"ab\n", "gz"),
    ("declared.csv", b"a\n", b"1\n", "gz"),
    ("declared.csv", b"a,b\n", b",\n", "gz"),
    ("arff", b"@attribute a string\n@data\n", b"ab\n", "gz"),
    ("declared.arff", b"@attribute a string\n@data\n", b"1\n", "gz"),
    ("jsonl", b"", b"{}\n", "gz"),
    ("jsonl", b"", b'{"a":[[],[],[],[],[],[],[],[]]}\n', "gz"),
    ("jsonl", b"", b'{"a":"ab"}\n', "gz"),
    ("jsonl", b"", b'{"a":' + b"[" * 900 + b"\n", "gz"),
    *(("sets.txt", b"a b\n", b"a\n", ending) for ending in COMPRESS),
    ("strings.txt", b"ab\n", b"ab\n", "xz"),
    ("graph", b"t # a\n", b"t # b\n", "gz"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "head", "line", "ending"), LARGEST)
def test_the_largest_content_of_3_kb_takes_little_memory(tmp_path, kind, head, line, ending):
    path = tmp_path / f"{kind}.{ending}"
    path.write_bytes(largest(head, line, COMPRESS[ending]))
    assert path.stat().st_size < 4096

    peak, _ = peak_of(READERS[kind], path)

    assert peak < MAX_PEAK


@pytest.mark.slow
@pytest.mark.parametrize("cell", [0, 1.5, "ab"], ids=str)
def test_the_largest_parquet_file_of_few_kb_takes_little_memory(tmp_path, cell):
    import pyarrow
    from pyarrow import parquet

    path, peaks = tmp_path / "t.parquet", []
    for n_rows in (300_000, 600_000, 800_000):
        indices = pyarrow.array(np.zeros(n_rows, np.int8))
        column = pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array([cell]))
        parquet.write_table(pyarrow.table({"a": column}), path, compression="zstd")
        peaks.append(peak_of(READERS["declared.csv"], path)[0])

    assert max(peaks) < MAX_PEAK


def test_damaged_parquet_metadata_is_refused(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"a": [1, 2, None], "y": [0, 1, 0]}), path)
    raw = path.read_bytes()  # column "a" is optional: its repetition type is 1, encoded as 2
    assert raw.count(b"\x25\x02\x18\x01a") == 1
    path.write_bytes(raw.replace(b"\x25\x02\x18\x01a", b"\x25\x00\x18\x01a"))

    for kind in ("csv", "declared.csv"):
        with pytest.raises(DataError, match="size mismatch"):
            READERS[kind](path)
