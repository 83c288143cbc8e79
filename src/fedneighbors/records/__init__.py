"""What a run leaves on disk: schema, writer, reader."""

from fedneighbors.records._files import replace_file
from fedneighbors.records._pixels import decode_pixels, encode_pixels
from fedneighbors.records._reader import read_record
from fedneighbors.records._schema import (
    FIGURE_KINDS,
    Figure,
    Round,
    RunRecord,
    Scalar,
    Table,
    environment,
)
from fedneighbors.records._writer import write_record

__all__ = [
    "FIGURE_KINDS",
    "Figure",
    "Round",
    "RunRecord",
    "Scalar",
    "Table",
    "decode_pixels",
    "encode_pixels",
    "environment",
    "read_record",
    "replace_file",
    "write_record",
]
