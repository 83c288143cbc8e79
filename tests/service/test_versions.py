"""Files that earlier versions of the program wrote, and those of later ones.

``versions`` has dumps of such files. The broker's are by commits 42968e02 (``state-1``) and
fba82045, the provider's log by fba82045 and its ledger by 0043ca81.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedneighbors.errors import LedgerError
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service import ServiceError
from fedneighbors.service._access_log import AccessEntry, AccessLog, LogFailed, compare_logs
from fedneighbors.service._config import PolicySection
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.service._state import BrokerState, StateFailed
from tests.service.deployment import deployed, offered
from tests.service.test_query_budget import NORTH, SECTION

DUMPS = Path(__file__).with_name("versions")
TOKEN, KEY = "fn_old", bytes([1]) * 32  # in the dumps
OPENED = {"state-1": BrokerState, "state-2": BrokerState, "log-2": AccessLog, "ledger-1": Ledger}


def load(name, path):
    """Write the database of a dump."""
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((DUMPS / f"{name}.sql").read_text(encoding="utf-8"))
        connection.execute("PRAGMA journal_mode = WAL")
    path.chmod(0o600)
    return path


def read_schema(path):
    with closing(sqlite3.connect(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        columns = "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c"
        return version, sorted(connection.execute(columns).fetchall())


@pytest.mark.parametrize("state", ["state-1", "state-2"])
def test_a_service_continues_with_files_of_earlier_versions(tmp_path, state):
    load(state, tmp_path / "state/broker.sqlite")
    log = AccessLog(load("log-2", tmp_path / "state/north.log"))
    with (
        closing(log),
        Ledger(load("ledger-1", tmp_path / "state/north.ledger"), party="north") as ledger,
        deployed(tmp_path, SECTION) as deployment,
    ):
        deployment.identities["north"] = Identity(KEY)  # is enrolled in the file
        points = np.arange(8.0)[:, np.newaxis]
        one = offered("north", "points", "euclidean", points, tie_key="0", epoch="0" * 32)
        policy = {"level": "distances", "privacy": NORTH["privacy"]}
        policy = PolicySection.model_validate(policy)
        own = OfferedObjects(one.party, one.offer, policy=policy, log=log, ledger=ledger)
        deployment.start("north", {"points": own})
        south = offered("south", "points", "euclidean", points + 0.5, tie_key="0")
        deployment.start("south", {"points": south})
        deployment.wait("north", "south")
        with deployment.client("points", token=TOKEN) as search:
            for value in (0.0, 5.0):  # one of three was charged in the file
                assert search.kneighbors([[value]], 1)[1] == [[("north", f"{value:.0f}")]]
            with pytest.raises(ServiceError, match="budget-exceeded"):
                search.kneighbors([[6.0]], 1)
        assert ledger.spent("points").epsilon == 3
        assert log.verify() > 2
        assert [entry["purpose"] for entry in log.entries_of("alice", 100)][-2:] == ["", ""]


@pytest.mark.parametrize("name", OPENED)
def test_an_upgraded_file_has_the_tables_of_a_new_one(tmp_path, name):
    old, new = load(name, tmp_path / "old"), tmp_path / "new"
    for _ in range(2):
        OPENED[name](old).close()
    options = {"party": "north"} if OPENED[name] is Ledger else {}
    OPENED[name](new, **options).close()

    assert read_schema(old) == read_schema(new)


def test_entries_without_a_purpose_are_compared(tmp_path):
    with (
        closing(AccessLog(load("log-2", tmp_path / "own"))) as own,
        closing(AccessLog(tmp_path / "broker")) as broker,
    ):
        (entry, _) = own.entries()
        query, digest = entry["query"][:16], entry["digest"]
        broker.append(AccessEntry(query, "alice", "points", "search", 3, digest=digest))
        assert compare_logs("north", own.entries(), broker.entries()) == []


@pytest.mark.parametrize(
    ("name", "error"), [("state-2", StateFailed), ("log-2", LogFailed), ("ledger-1", LedgerError)]
)
def test_files_of_later_versions_are_refused_and_unchanged(tmp_path, name, error):
    path = load(name, tmp_path / "file")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()

    with pytest.raises(error, match="has version 99, this program reads"):
        OPENED[name](path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("opened", [BrokerState, AccessLog])
def test_a_file_that_is_no_database_is_refused(tmp_path, opened):
    path = tmp_path / "file"
    path.write_bytes(b"no database" * 1000)

    with pytest.raises((StateFailed, LogFailed), match="cannot be used"):
        opened(path)


def test_a_ledger_with_other_tables_is_not_upgraded(tmp_path):
    path = load("ledger-1", tmp_path / "file")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE VIEW other AS SELECT * FROM about")

    with pytest.raises(LedgerError, match="has version 2"):
        Ledger(path)
