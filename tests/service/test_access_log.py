"""Logs of queries: chains of digests, and the comparison of broker and provider."""

import json
import re
import sqlite3
import threading
from datetime import datetime

import pytest
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.errors import DataError
from fedneighbors.service import _access_log
from fedneighbors.service._access_log import AccessEntry, AccessLog, compare_logs


def entry(query="0" * 18, user="alice", digest="aa", **changes):
    return AccessEntry(query, user, "points", "NearestRequest", 5, digest=digest, **changes)


@pytest.fixture
def log(tmp_path):
    log = AccessLog(tmp_path / "state/log.sqlite")
    for number in range(6):
        log.append(entry(f"{number:016x}00"), n_queries=1)
    yield log
    log.close()


def test_entries_are_verified(log):
    assert log.verify() == 6
    head = log.head
    log.append(entry())
    assert log.verify(head) == 7
    assert [one["number"] for one in log.entries()] == list(range(1, 8))
    assert log.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entry SET content = replace(content, 'alice', 'bob') WHERE number = 3",
        "DELETE FROM entry WHERE number = 3",
        "DELETE FROM entry WHERE number = 1",
        "UPDATE entry SET number = 30 WHERE number = 6",
        "INSERT INTO entry SELECT number + 6, content, chain FROM entry WHERE number = 1",
    ],
)
def test_altered_entries_are_found(log, change):
    with sqlite3.connect(log.path) as connection:
        connection.execute(change)
    with pytest.raises(DataError, match="was altered or removed"):
        log.verify()


def test_a_log_is_read_in_parts(log, monkeypatch):
    whole = list(log.entries())
    monkeypatch.setattr(_access_log, "_SCANNED", 4)
    assert list(log.entries()) == whole
    assert log.verify() == 6
    with sqlite3.connect(log.path) as connection:
        connection.execute("DELETE FROM entry WHERE number = 5")
    with pytest.raises(DataError, match="entry 5 was altered or removed"):
        log.verify()


def test_entries_are_found_by_user_query_and_number(log):
    log.append(entry("f" * 18, user="bob"))
    assert [one["number"] for one in log.entries_of(None, 3)] == [7, 6, 5]
    assert [one["number"] for one in log.entries_of("alice", 2, before=4)] == [3, 2]
    assert [one["user"] for one in log.entries_of(None, 9, query="f" * 18)] == ["bob"]
    assert log.entries_of("alice", 9, query="f" * 18) == []


def test_removed_last_entries_are_found_with_an_earlier_head(log):
    head = log.head
    with sqlite3.connect(log.path) as connection:
        connection.execute("DELETE FROM entry WHERE number > 4")
    assert log.verify() == 4
    with pytest.raises(DataError, match="rolled back"):
        log.verify(head)
    with pytest.raises(DataError, match="expected the head of a log"):
        log.verify("x")


def test_threads_and_processes_share_a_log(log):
    other = AccessLog(log.path)

    def append(one):
        for _ in range(50):
            one.append(entry(user="bob", n_objects=2), n_queries=1)

    threads = [threading.Thread(target=append, args=[one]) for one in (log, other, log)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert log.verify() == 156
    assert log.usage("points", "bob") == (150, 300)
    assert log.usage("points", "alice") == (6, 0)


def broker_entries(*queries, **changes):
    for query in queries:
        yield {
            **{"query": query, "user": "alice", "collection": "points", "digest": "aa"},
            **{"providers": ["north"], "time": 0.0, "purpose": "", **changes},
        }


def test_logs_that_agree_have_no_difference(log):
    queries = [f"{number:016x}" for number in range(6)]
    assert compare_logs("north", log.entries(), broker_entries(*queries)) == []


def test_each_difference_is_named(log):
    queries = [f"{number:016x}" for number in range(6)]
    hidden = compare_logs("north", log.entries(), broker_entries(*queries[:5]))
    assert hidden == [f"the broker's log lacks query {queries[5]} of 'alice'"]
    missed = compare_logs("north", log.entries(), broker_entries(*queries, "f" * 16))
    assert missed == [f"the log of 'north' lacks query {'f' * 16} of 'alice'"]
    changed = compare_logs("north", log.entries(), broker_entries(*queries, user="bob"))
    assert len(changed) == 6
    assert changed[0] == f"query {queries[0]} has user 'bob' in the broker's log, 'alice' here"
    other = compare_logs("north", log.entries(), broker_entries(*queries, digest="bb"))
    assert len(other) == 6
    purpose = compare_logs("north", log.entries(), broker_entries(*queries, purpose="audit"))
    assert purpose[5] == f"query {queries[5]} has purpose 'audit' in the broker's log, '' here"
    log.append(entry(f"{3:016x}01", user="eve"))  # under the name of a known query
    second = compare_logs("north", log.entries(), broker_entries(*queries))
    assert second == [f"query {queries[3]} has user 'alice' in the broker's log, 'eve' here"]


@pytest.mark.parametrize(
    ("kind", "size", "other", "most"),
    [
        ("search", 8, "BoundRequest", None),
        ("search", 7, "BoundRequest", 7),
        ("search", 7, "RangeCountRequest", None),  # an algorithm may fetch more
        ("search", 2.0, "RangeCountRequest", None),  # a radius
        ("count", 2.0, "RangeCountRequest", 0),
    ],
)
def test_more_objects_than_were_asked_for_are_named(tmp_path, kind, size, other, most):
    log, name = AccessLog(tmp_path / "log.sqlite"), "a" * 16
    log.append(AccessEntry(f"{name}01", "alice", "points", other, 3, digest="aa"))
    for n in (5, 3):
        log.append(entry(f"{name}01", n_objects=n))
    found = compare_logs("north", log.entries(), broker_entries(name, kind=kind, size=size))
    log.close()
    text = f"query {name} is for {most} objects in the broker's log, and showed it 8 here"
    assert found == ([] if most is None else [text])


def test_commands_verify_and_compare(log, tmp_path, monkeypatch):
    (tmp_path / "provider.toml").write_text(
        'format = 1\n[provider]\nname = "north"\nbroker = "https://b"\nlog = "state/log.sqlite"\n'
        '[collections.points]\nmetric = "edit"\nsource = { file = "x" }\n'
    )
    (tmp_path / "broker.toml").write_text(
        'format = 1\nlog = "state/log.sqlite"\n'
        '[collections.points]\nmetric = "edit"\nproviders = ["north"]\n'
    )
    monkeypatch.chdir(tmp_path)
    call = CliRunner().invoke
    for party in ("broker", "provider"):
        verified = call(app, [party, "log", "verify", "--head", log.head])
        assert verified.exit_code == 0
        assert f"6 entries agree; the head is {log.head}" in verified.output.replace("\n", "")
        assert "give an earlier --head" in call(app, [party, "log", "verify"]).output
        exported = call(app, [party, "log", "export"]).stdout.splitlines()
        entries = [json.loads(line) for line in exported]
        assert all(re.fullmatch(r"[-0-9]{10}T[:0-9]{8}\.\d{3}Z", one["time"]) for one in entries)
        for one in entries:
            one["time"] = round(datetime.fromisoformat(one["time"]).timestamp(), 3)
        assert entries == list(log.entries())
    queries = [f"{number:016x}" for number in range(6)]
    for known, code in ((queries, 0), (queries[1:], 1)):
        changes = broker_entries("f" * 16, collection="", providers=[])
        lines = map(json.dumps, [*changes, *broker_entries(*known)])
        (tmp_path / "broker.log").write_text("\n".join(lines))
        compared = call(app, ["provider", "log", "compare", "broker.log"])
        assert compared.exit_code == code
        assert ("the logs agree on 6 queries" in compared.output) == (code == 0)
    assert f"lacks query {queries[0]}" in compared.output
    (tmp_path / "broker.log").write_text("[]")
    assert "is no exported log" in call(app, ["provider", "log", "compare", "broker.log"]).output
