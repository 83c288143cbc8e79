"""Backups of brokers and providers, also of running ones, and their restoration."""

import re
import shutil
import sqlite3
import threading
from contextlib import closing

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.errors import BudgetExceeded, DataError
from fedneighbors.privacy import ZCDP, ApproxDP, PureDP
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service import RemoteNeighbors, ServiceError
from fedneighbors.service._access_log import AccessEntry, AccessLog
from fedneighbors.service._backup import (
    ArchiveRefused,
    BackupError,
    FileInTheWay,
    restore_backup,
    write_backup,
)
from fedneighbors.service._config import ProviderConfig
from tests.service.test_processes import TIMEOUT_S, commands, free_port

__all__ = ["commands"]

PROVIDER = """
format = 1
[provider]
name = "{name}"
broker = "https://127.0.0.1:{port}"
[collections.points]
metric = "euclidean"
tie_key = "0"
source = {{ file = "points.csv", columns = ["x"], id = "id" }}
[collections.points.policy]
level = "distances"
[collections.points.policy.privacy]
epsilon = 1.0
delta = 1e-6
max_queries = {max_queries}
"""
BROKER = """
format = 1
[server]
listen = "127.0.0.1:{port}"
[collections.points]
metric = "euclidean"
providers = ["north", "south"]
algorithm = "dann*"
tie_key = "0"
privacy = {{ epsilon = 1.0, delta = 1e-6, grid_s = 0.0 }}
"""
NAMES = ("north", "south")


def make_provider(folder, name="north", port=8443, max_queries=10):
    folder.mkdir(exist_ok=True)
    text = PROVIDER.format(name=name, port=port, max_queries=max_queries)
    (folder / "provider.toml").write_text(text, encoding="utf-8")
    rows = [f"{name}-{row},{row + 0.5 * NAMES.index(name)}\n" for row in range(6)]
    (folder / "points.csv").write_text("id,x\n" + "".join(rows), encoding="utf-8")
    return folder / "provider.toml"


def list_files(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


class Service:
    """A private collection of two providers, as processes."""

    def __init__(self, commands, folder):
        self.commands, self.folder, self.port = commands, folder, free_port()
        self.processes = {}
        (folder / "broker").mkdir()
        text = BROKER.format(port=self.port)
        (folder / "broker/broker.toml").write_text(text, encoding="utf-8")
        self.start("broker", "the broker answers at")
        for name in NAMES:
            make_provider(folder / name, name, self.port)
            code = self.call("broker", "broker", "enrol", name)
            self.call(name, "provider", "enrol", code)
            self.start(name, "connected to")
        self.token = self.call("broker", "broker", "token", "alice")

    def call(self, name, *arguments):
        return self.commands.call(self.folder / name, *arguments)

    def start(self, name, text):
        role = "broker" if name == "broker" else "provider"
        process = self.commands.start(self.folder / name, role, "serve")
        self.commands.wait_for(process, text)
        self.processes[name] = process

    def stop(self, name):
        self.processes[name].terminate()
        assert self.processes[name].wait(TIMEOUT_S) == 0

    def restart_broker(self):
        self.start("broker", "the broker answers at")
        for name in NAMES:
            self.commands.wait_for(self.processes[name], "connected to")  # again, by itself

    def search(self, value):
        with RemoteNeighbors(
            f"https://127.0.0.1:{self.port}",
            collection="points",
            token=self.token,
            certificate=self.folder / "broker/state/server.crt",
        ) as client:
            return client.kneighbors([[value]], 3)[1][0]


@pytest.mark.e2e
def test_a_restored_service_spends_no_budget_before_its_owners_agree(commands, tmp_path):
    service = Service(commands, tmp_path)
    answer, folders = service.search(1.0), {"broker": "broker", "north": "provider"}
    digests, heads = {}, {}
    for name, role in folders.items():  # they run
        printed = service.call(name, role, "backup", f"../{name}.backup")
        digests[name] = printed.split()[0]
        assert f"restore ../{name}.backup --digest {digests[name]}" in " ".join(printed.split())
        assert (tmp_path / f"{name}.backup").stat().st_mode & 0o777 == 0o600
        text = "".join(service.call(name, role, "log", "verify").split())
        heads[name] = re.search(r"\d+:[0-9a-f]{64}$", text)[0]
    service.search(2.0)  # is charged after the backups
    for name, role in folders.items():
        service.stop(name)
        shutil.rmtree(tmp_path / name / "state")
        (tmp_path / name / f"{role}.toml").unlink()
        arguments = f"../{name}.backup", "--digest", digests[name]
        restored = service.call(name, role, "restore", *arguments)
        assert "ledger reconcile" in restored
        assert "compare the digest" not in restored
        service.call(name, role, "log", "verify", "--head", heads[name])
    assert "points: 0 of 0" in service.call("north", "provider", "budget")
    service.processes["north"] = commands.start(tmp_path / "north", "provider", "serve")
    service.restart_broker()
    assert service.search(1.0) == answer  # was charged before the backups
    with pytest.raises(ServiceError, match="budget-exceeded"):
        service.search(3.0)
    service.stop("broker")
    service.call("broker", "ledger", "reconcile", "state/ledger-points.sqlite")
    service.restart_broker()
    with pytest.raises(ServiceError, match="budget-exceeded") as caught:
        service.search(3.0)
    assert caught.value.party == "north"
    service.stop("north")
    make_provider(tmp_path / "north", port=service.port, max_queries=2)
    service.call("north", "ledger", "reconcile", "state/provider.ledger.sqlite")
    service.start("north", "connected to")
    service.search(3.0)
    with pytest.raises(ServiceError, match="budget-exceeded"):
        service.search(4.0)


def make_state(folder):
    """Make a provider with a key, charges and entries; return its configuration and ledger."""
    path = make_provider(folder)
    config = ProviderConfig.read(path)
    ledger = config.open_ledger()
    Identity.new().write(config.path(config.provider.key))
    config.forgotten_file.write_text("0123\n", encoding="utf-8")
    config.pause_file.touch()
    ledger.set_budget("points", PureDP(10))
    release(ledger, "first")
    return path, ledger


def release(ledger, query):
    terms = {"dataset": "points", "user": "alice", "cost": PureDP("0.5")}
    return ledger.release(query, draw=query.encode, **terms)


def test_a_backup_is_consistent_while_the_provider_writes(tmp_path):
    path, ledger = make_state(tmp_path / "north")
    config, stop, numbers = ProviderConfig.read(path), threading.Event(), []
    log = AccessLog(config.path(config.provider.log))

    def write():
        while not stop.is_set():
            log.append(AccessEntry(str(len(numbers)), "alice", "points", "search", 3), n_queries=1)
            ledger.epoch("points", str(len(numbers)).encode())
            numbers.append(0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            before = len(numbers)
            write_backup("provider", path, tmp_path / f"{number}.backup")
            copy = tmp_path / str(number) / "provider.toml"
            restore_backup("provider", tmp_path / f"{number}.backup", copy)
            with closing(AccessLog(copy.parent / "state/provider.log.sqlite")) as restored:
                assert restored.verify() >= before
    finally:
        stop.set()
        writer.join()
        log.close()
        ledger.close()
    for name in ("provider.toml", "state/provider.pem", "state/forgotten", "state/paused"):
        restored = copy.parent / name
        assert restored.read_bytes() == (path.parent / name).read_bytes()
        assert restored.stat().st_mode & 0o777 == 0o600
    assert {file.suffix for file in (tmp_path / "0").rglob("*.*")} == {".toml", ".sqlite", ".pem"}


@pytest.mark.parametrize("budget", [PureDP(10), ApproxDP(10, "1e-6"), ZCDP(10)])
def test_a_held_ledger_charges_nothing_until_a_budget_is_set(tmp_path, budget):
    with Ledger(tmp_path / "north.ledger", party="north") as ledger:
        ledger.set_budget("points", budget)
        ledger.set_budget("points", budget, user="alice")
        release(ledger, "first")
        ledger.hold()
        assert ledger.is_held
        for _ in range(2):
            assert release(ledger, "first") == b"first"
            with pytest.raises(BudgetExceeded):
                release(ledger, "second")
            ledger.end_hold()
            assert not ledger.is_held
        ledger.set_budget("points", budget)
        ledger.set_budget("points", budget, user="alice")
        assert release(ledger, "second") == b"second"


def test_an_archive_with_any_change_is_refused(tmp_path):
    path, ledger = make_state(tmp_path / "north")
    ledger.close()
    archive, target = tmp_path / "north.backup", tmp_path / "new/provider.toml"
    digest = write_backup("provider", path, archive)
    content = archive.read_bytes()
    changed = [content[:-1], content + b"0", b"", content[:50], archive.name.encode()]
    for position in np.linspace(0, len(content) - 1, 60).astype(int):
        other = bytearray(content)
        other[position] ^= 1
        changed.append(bytes(other))
    changed.append(content.replace(b"backup 1 ", b"backup 2 ", 1))
    for other in changed:
        archive.write_bytes(other)
        with pytest.raises(ArchiveRefused):
            restore_backup("provider", archive, target)
    archive.write_bytes(content)
    with pytest.raises(ArchiveRefused, match="backup of a provider"):
        restore_backup("broker", archive, target)
    with pytest.raises(ArchiveRefused, match="was changed"):
        restore_backup("provider", archive, target, digest="0" * 64)
    assert not target.parent.exists()
    restore_backup("provider", archive, target, digest=digest)


def test_commands_print_the_digest_for_a_comparison(tmp_path):
    path, ledger = make_state(tmp_path / "north")
    ledger.close()
    archive = str(tmp_path / "north.backup")

    def call(*words):
        return CliRunner().invoke(app, ["provider", *words])

    made = call("backup", archive, "--config", str(path))
    digest = made.stdout.strip()
    assert f"provider restore {archive} --digest {digest}" in made.stderr
    target = str(tmp_path / "new/provider.toml")
    wrong = call("restore", archive, "--config", target, "--digest", "0" * 64)
    assert f"or is another archive: expected the digest {'0' * 64}, found {digest}" in wrong.stderr
    restored = call("restore", archive, "--config", target)
    assert f"compare the digest of the archive with that of the backup: {digest}" in restored.stderr


def test_a_restoration_replaces_no_file_and_leaves_nothing_half_done(tmp_path):
    path, ledger = make_state(tmp_path / "north")
    ledger.close()
    archive, target = tmp_path / "north.backup", tmp_path / "new/provider.toml"
    write_backup("provider", path, archive)
    with pytest.raises(FileInTheWay):
        write_backup("provider", path, archive)
    for name in ("provider.toml", "state/forgotten", "state/provider.ledger.sqlite-wal"):
        file = target.parent / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"new")
        with pytest.raises(FileInTheWay, match="expected no file"):
            restore_backup("provider", archive, target)
        assert list_files(target.parent) == ({file.relative_to(target.parent): b"new"})
        shutil.rmtree(target.parent)
    text = path.read_text(encoding="utf-8").replace(
        "[collections", 'certificate = "same"\n[collections', 1
    )
    path.write_text(text.replace("[collections", 'key = "same"\n[collections', 1), encoding="utf-8")
    (path.parent / "same").write_text("both")
    write_backup("provider", path, tmp_path / "same.backup")
    with pytest.raises(FileInTheWay):  # the second of two files at one place
        restore_backup("provider", tmp_path / "same.backup", target)
    assert not target.parent.exists()


def test_a_schema_of_two_collections_is_restored(tmp_path):
    path, ledger = make_state(tmp_path / "north")
    ledger.close()
    (path.parent / "people.toml").write_text('[columns.age]\nkind = "number"\n')
    rows = '\n[collections.{}]\nmetric = "tabular"\nschema = "people.toml"\nsource.file = "p.csv"\n'
    with path.open("a", encoding="utf-8") as file:
        file.write(rows.format("here") + rows.format("there"))
    write_backup("provider", path, tmp_path / "north.backup")
    target = tmp_path / "new/provider.toml"
    restore_backup("provider", tmp_path / "north.backup", target)

    schema = (path.parent / "people.toml").read_text(encoding="utf-8")
    assert (target.parent / "people.toml").read_text(encoding="utf-8") == schema


def test_a_backup_of_nothing_or_of_a_damaged_file_is_an_error(tmp_path):
    path = make_provider(tmp_path / "north")
    archive = tmp_path / "north.backup"
    with pytest.raises(BackupError, match="expected the state of a provider"):
        write_backup("provider", path, archive)
    with pytest.raises(DataError, match="there is no file"):
        write_backup("broker", tmp_path / "broker.toml", archive)
    (path.parent / "state").mkdir()
    (path.parent / "state/provider.log.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(BackupError, match="cannot be copied"):
        write_backup("provider", path, archive)
    assert [file.name for file in tmp_path.iterdir()] == ["north"]


def test_an_altered_log_is_not_restored(tmp_path):
    path, ledger = make_state(tmp_path / "north")
    ledger.close()
    file = path.parent / "state/provider.log.sqlite"
    with closing(AccessLog(file)) as log:
        log.append(AccessEntry("0", "alice", "points", "search", 3))
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE entry SET content = replace(content, 'alice', 'bob')")
    write_backup("provider", path, tmp_path / "north.backup")
    with pytest.raises(DataError, match="entry 1 was altered"):
        restore_backup("provider", tmp_path / "north.backup", tmp_path / "new/provider.toml")
    assert not (tmp_path / "new").exists()
