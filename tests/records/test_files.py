"""A file is written whole or not at all."""

import os

import pytest

from fedneighbors.records import RunRecord, read_record, replace_file, write_record


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    write_record(RunRecord("old", {}), path)

    def full_disk(file_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_record(RunRecord("new", {}), path)

    assert read_record(path).name == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_replaces_the_old_one_and_leaves_no_part(tmp_path):
    path = tmp_path / "run.jsonl"
    write_record(RunRecord("old", {}), path)

    write_record(RunRecord("new", {}), path)

    assert read_record(path).name == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "none" / "file", b"")
