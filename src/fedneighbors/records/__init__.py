"""What a run leaves on disk: schema, writer, reader."""

from fedneighbors.records.schema import Figure, Round, RunRecord, Scalar, Table

__all__ = ["Figure", "Round", "RunRecord", "Scalar", "Table"]
