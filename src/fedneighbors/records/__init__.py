"""What a run leaves on disk: schema, writer, reader."""

from fedneighbors.records.environment import environment
from fedneighbors.records.files import replace_file
from fedneighbors.records.pixels import decode_pixels, encode_pixels
from fedneighbors.records.reader import read_record
from fedneighbors.records.schema import FIGURE_KINDS, Figure, Round, RunRecord, Scalar, Table
from fedneighbors.records.writer import write_record

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
