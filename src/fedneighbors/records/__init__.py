"""Run records: schema, writer and reader."""

from fedneighbors.records._encoding import decode_pixels, encode_pixels
from fedneighbors.records._schema import (
    FIGURE_KINDS,
    Figure,
    ResultTable,
    Round,
    RunRecord,
    Scalar,
    environment,
)
from fedneighbors.records._storage import read_record, replace_file, write_record

__all__ = [
    "FIGURE_KINDS",
    "Figure",
    "Round",
    "RunRecord",
    "Scalar",
    "ResultTable",
    "decode_pixels",
    "encode_pixels",
    "environment",
    "read_record",
    "replace_file",
    "write_record",
]
