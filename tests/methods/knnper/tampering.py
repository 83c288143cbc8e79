"""Helpers that change records and model files, and interrupt a training."""

from collections.abc import Mapping
from dataclasses import fields

from fedneighbors.methods.knnper._checkpoint import Checkpoint
from fedneighbors.methods.knnper._model import KNNPerModel
from fedneighbors.tabular._model_file import encode_model


def alter_record(record, changes):
    """Return a record with changed fields; dots separate the names in a path.

    The checks of the records are bypassed, so that the reader of the file must find the error.
    """
    for path, value in changes.items():
        record = _set_field(record, path.split("."), value)
    return record


def _set_field(record, path, value):
    if not path:
        return value
    name, *rest = path
    if isinstance(record, Mapping):
        return {**record, name: _set_field(record[name], rest, value)}
    copy = object.__new__(type(record))
    for field in fields(record):
        object.__setattr__(copy, field.name, getattr(record, field.name))
    object.__setattr__(copy, name, _set_field(getattr(record, name), rest, value))
    return copy


def alter_file(raw, changes, *, magic=None):
    """Return a model file with changed fields and a correct checksum."""
    model = KNNPerModel.from_bytes(raw)
    return encode_model(magic or model.task.magic, alter_record(model, changes))


def interrupt_second_write(monkeypatch):
    """Interrupt a training after its second checkpoint; later ones are not interrupted."""
    write, stages = Checkpoint.write, []

    def write_and_interrupt(self, stage):
        write(self, stage)
        stages.append(stage)
        if len(stages) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "write", write_and_interrupt)
