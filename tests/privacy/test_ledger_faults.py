"""An unusable ledger explains the reason and the remedy; nothing is charged without a release."""

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from fedneighbors.cli._ledger import reconcile
from fedneighbors.errors import FedneighborsError, LedgerError
from fedneighbors.privacy._guarantees import PureDP
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.ledger._tables import from_columns

ASK = {"dataset": "visits", "user": "study", "cost": PureDP("0.1")}


@pytest.fixture
def path(tmp_path):
    """A closed ledger with one release and no -wal file."""
    with Ledger(tmp_path / "north.ledger", party="north") as ledger:
        ledger.set_budget("visits", PureDP(1))
        ledger.release("q0", draw=lambda: bytes(20_000), **ASK)
    assert [file.name for file in tmp_path.iterdir()] == ["north.ledger"]
    return tmp_path / "north.ledger"


@contextmanager
def without_triggers(path):
    """Yield a connection to a ledger whose triggers are absent until the end."""
    with closing(sqlite3.connect(path)) as connection:
        triggers = connection.execute(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"
        ).fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        yield connection
        for _, sql in triggers:
            connection.execute(sql)
        connection.commit()


def state(path):
    with Ledger(path) as ledger:
        return ledger.entries(), ledger.spent("visits")


def run_in_child(work):
    """Run a function in a forked process; return its result, or its error, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = str(work())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(child, 0)
    return answer


@pytest.mark.parametrize("reader", [None, "north"])
def test_an_emptied_file_is_not_a_new_ledger(path, reader):
    path.write_bytes(b"")

    with pytest.raises(LedgerError, match=r"is empty: .* lose the charges"):
        Ledger(path, party=reader)

    assert path.read_bytes() == b""


@pytest.mark.parametrize("ending", ["-wal", "-journal"])
def test_a_missing_file_with_a_log_is_not_a_new_ledger(path, ending):
    path.rename(path.with_name(path.name + ending))

    with pytest.raises(LedgerError, match=rf"is missing but .*{ending} exists"):
        Ledger(path, party="north")

    assert not path.exists()


def test_no_ledger_is_created_if_it_must_exist_or_has_no_party(tmp_path):
    for options in ({"party": "north", "must_exist": True}, {"party": None}):
        with pytest.raises(LedgerError, match=r"no ledger at .* check the path, or name"):
            Ledger(tmp_path / "none", **options)

    assert list(tmp_path.iterdir()) == []


def test_a_ledger_in_memory_needs_a_party():
    with pytest.raises(LedgerError, match="name its party"):
        Ledger(":memory:")


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(LedgerError, match=r"none/north\.ledger cannot be opened; make file and"):
        Ledger(tmp_path / "none" / "north.ledger", party="north")


def test_the_ledger_of_another_party_is_refused(path):
    with pytest.raises(LedgerError, match="belongs to party 'north', not to 'south'"):
        Ledger(path, party="south")


@pytest.mark.parametrize("share", [0.999, 0.75, 0.5, 0.25, 0.1])
def test_a_truncated_ledger_is_refused(path, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])

    with pytest.raises(LedgerError, match=r"damaged.*restore it"):
        Ledger(path, party="north")


def test_every_truncation_near_a_page_is_refused(path):
    whole = path.read_bytes()

    for page in range(4096, len(whole) + 1, 4096):
        for length in {page - 1, page, page + 1} - {len(whole), len(whole) + 1}:
            path.write_bytes(whole[:length])
            with pytest.raises(LedgerError):
                Ledger(path, party="north")


def test_a_foreign_file_is_not_changed(tmp_path):
    text, other = tmp_path / "notes.txt", tmp_path / "other.db"
    text.write_text("not a ledger\n" * 1000)
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE t (a)")
    before = text.read_bytes(), other.read_bytes()

    with pytest.raises(LedgerError, match="is not an SQLite file"):
        Ledger(text, party="north")
    with pytest.raises(LedgerError, match="is not a fedneighbors ledger"):
        Ledger(other, party="north")

    assert (text.read_bytes(), other.read_bytes()) == before


def test_a_ledger_of_another_version_is_refused(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")

    with pytest.raises(LedgerError, match="has version 1, this program reads version 3"):
        Ledger(path)


def test_a_ledger_without_write_ahead_log_is_refused(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")

    with pytest.raises(LedgerError, match="is in journal mode delete, expected wal"):
        Ledger(path)


def test_a_ledger_that_lost_a_table_is_refused(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("DROP TABLE answer")

    with pytest.raises(LedgerError, match="has other tables than it was made with"):
        Ledger(path)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TRIGGER entry_stays",
        "CREATE TABLE more (a)",
        "DROP TABLE about; CREATE VIEW about AS WITH RECURSIVE n(party) AS "
        "(SELECT 1 UNION ALL SELECT party + 1 FROM n) SELECT max(party) AS party FROM n",
    ],
    ids=["trigger", "table", "endless view"],
)
def test_a_ledger_with_other_statements_is_refused(path, statement):
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statement)

    with pytest.raises(LedgerError, match="has other tables than it was made with"):
        Ledger(path)


@pytest.mark.parametrize(
    "statement", ["DELETE FROM about", "INSERT INTO about SELECT * FROM about"], ids=["none", "two"]
)
def test_a_ledger_without_one_owner_is_refused(path, statement):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()

    with pytest.raises(LedgerError, match="owners, expected 1"):
        Ledger(path)


def test_an_altered_answer_is_not_returned(path):
    with without_triggers(path) as connection:
        connection.execute("UPDATE answer SET content = x'00'")

    with pytest.raises(LedgerError, match=r"table answer, which differs .* was altered"):
        Ledger(path)


def test_an_answer_altered_to_one_of_its_size_is_not_returned(path):
    with without_triggers(path) as connection:
        connection.execute("UPDATE answer SET content = ?", (bytes(19_999) + b"1",))

    with Ledger(path) as ledger, pytest.raises(LedgerError, match="'q0' was altered"):
        ledger.release("q0", draw=lambda: b"noised", **ASK)


def test_a_guarantee_that_cannot_be_read_is_named(path):
    with without_triggers(path) as connection:
        connection.execute("UPDATE charge SET first = 'much'")

    with pytest.raises(LedgerError, match=r"table charge, which differs .* was altered"):
        Ledger(path)


@pytest.mark.parametrize("text", ["much", "1e999999999", "1/0", "-1/2", "1/2/3", "1" * 5000 + "/1"])
def test_columns_that_are_no_guarantee_are_named(text):
    with pytest.raises(LedgerError, match=f"cannot be read: pure {text[:80]}"):
        from_columns("pure", text, "")


def test_a_locked_ledger_raises_after_its_timeout(path):
    before = state(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with Ledger(path, timeout_s=0) as ledger:
            with pytest.raises(LedgerError, match="locked by another process for 0 s; let it"):
                ledger.release("q1", draw=lambda: b"noised", **ASK)
            with pytest.raises(LedgerError, match="locked"):
                ledger.set_budget("visits", PureDP(2))
            assert ledger.release("q0", draw=lambda: b"other", **ASK) == bytes(20_000)

        other.execute("ROLLBACK")
    assert state(path) == before


def test_a_charge_without_a_stored_answer_is_voided_later(path):
    other = sqlite3.connect(path, isolation_level=None)

    def draw():
        other.execute("BEGIN IMMEDIATE")
        return b"noised"

    with closing(other), Ledger(path, timeout_s=0) as ledger:
        with pytest.raises(LedgerError, match="locked"):
            ledger.release("q1", draw=draw, **ASK)
        assert ledger.spent("visits") == PureDP("0.2")  # it counts until it is voided

        other.execute("ROLLBACK")
        ledger.release("q2", draw=lambda: b"noised", **ASK)

    entries, spent = state(path)
    assert spent == PureDP("0.2")
    assert [(e.kind, e.query) for e in entries[3:]] == [
        ("reserved", "q1"),
        ("voided", "q1"),
        ("reserved", "q2"),
        ("released", "q2"),
    ]


def test_an_unvoided_charge_is_voided_at_close(path):
    other = sqlite3.connect(path, isolation_level=None)

    def draw():
        other.execute("BEGIN IMMEDIATE")
        return b"noised"

    with closing(other), Ledger(path, timeout_s=0) as ledger:
        with pytest.raises(LedgerError, match="locked"):
            ledger.release("q1", draw=draw, **ASK)
        other.execute("ROLLBACK")

    assert state(path)[1] == PureDP("0.1")


def test_a_charge_before_a_crash_covers_a_later_release(path):
    """After a crash between charge and release, nothing voids the charge."""

    def crash():
        with Ledger(path) as ledger:
            ledger.release("q1", draw=lambda: os._exit(1), **ASK)

    run_in_child(crash)
    assert state(path)[1] == PureDP("0.2")

    with Ledger(path) as ledger:
        assert ledger.release("q1", draw=lambda: b"noised", **ASK) == b"noised"

    entries, spent = state(path)
    assert spent == PureDP("0.2")
    assert [(e.kind, e.query) for e in entries[3:]] == [("reserved", "q1"), ("released", "q1")]


def test_a_forked_process_cannot_use_an_open_ledger(path):
    with Ledger(path) as ledger:
        outcome = run_in_child(lambda: ledger.release("q1", draw=lambda: b"noised", **ASK))

        assert outcome.startswith("LedgerError: ledger ")
        assert "open it again after the fork" in outcome
        assert ledger.spent("visits") == PureDP("0.1")


@pytest.fixture
def readable():
    """A folder that every user of the system can read."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("folder_mode", [0o555, 0o777], ids=["folder too", "file alone"])
def test_a_read_only_ledger_charges_nothing(path, readable, folder_mode):
    copy = readable / "copy.ledger"
    shutil.copy(path, copy)
    if os.geteuid() == 0:
        os.chown(copy, 65534, 65534)
    copy.chmod(0o400)
    readable.chmod(folder_mode)

    def work():
        if os.geteuid() == 0:  # root may write anything
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        with Ledger(copy) as ledger:
            ledger.release("q1", draw=lambda: b"noised", **ASK)

    outcome = run_in_child(work)

    assert outcome.startswith("LedgerError")
    assert "make file and folder writable for this user" in outcome
    readable.chmod(0o755)
    assert state(copy) == state(path)


def release_with_at_most(n_bytes, path, *, n_before):
    """Request one release on a disk that is full at this size; return the outcome.

    ``n_before`` entries are written to the log before; nothing is written afterwards.
    """
    with Ledger(path) as ledger:
        for number in range(n_before):
            ledger.set_budget("other", PureDP(number))
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))
        try:
            ledger.release("q1", draw=lambda: bytes(50_000), **ASK)
        except LedgerError as error:
            return str(error)
        return "released"


@pytest.mark.parametrize("n_before", [0, 3, 6])
def test_a_full_disk_never_charges_for_nothing(path, n_before):
    spent, size, outcomes = state(path)[1], path.stat().st_size, []

    # pages of the file may be written again, but neither file nor log can grow beyond the limit;
    # the three tests together try each number of pages
    for limit in range(size + 4096 * (n_before // 3), size + 180_000, 3 * 4096):
        copy = path.with_name("copy.ledger")
        shutil.copy(path, copy)
        ask = partial(release_with_at_most, limit, copy, n_before=n_before)
        outcomes.append(run_in_child(ask))
        if outcomes[-1] == "released":
            assert state(copy)[1] == PureDP("0.2")
        else:
            assert "could not be written" in outcomes[-1]
            assert state(copy)[1] == spent
        copy.unlink()

    assert outcomes.count("released") > 2
    assert len(outcomes) - outcomes.count("released") > 2


def test_a_full_disk_leaves_no_partial_ledger(tmp_path):
    for limit in range(0, 60_000, 4096):

        def work(limit=limit):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            with Ledger(tmp_path / "north.ledger", party="north"):
                return "created"

        outcome = run_in_child(work)
        if outcome == "created":
            break
        assert outcome.startswith("LedgerError")
        assert list(tmp_path.iterdir()) == []

    assert limit > 4096
    assert outcome == "created"


def test_temporary_files_of_a_crashed_creation_are_swept(path):
    for ending in ("", "-wal"):
        part = path.with_name(f".{path.name}.0123456789ab.part{ending}")
        part.touch()
        os.utime(part, (0, 0))

    state(path)

    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_concurrent_creators_share_one_ledger(tmp_path):
    path = tmp_path / "north.ledger"
    code = (
        "import sys\n"
        "from fedneighbors.privacy._guarantees import PureDP\n"
        "from fedneighbors.privacy.ledger._ledger import Ledger\n"
        "sys.stdin.read(1)\n"
        "with Ledger(sys.argv[1], party='north') as ledger:\n"
        "    ledger.set_budget('visits', PureDP(1), user='user-' + sys.argv[2])\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    processes = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE) for number in range(4)
    ]

    for process in processes:
        process.stdin.write(b"\n")
        process.stdin.close()
    codes = [process.wait() for process in processes]

    assert codes == [0] * 4
    assert [file.name for file in tmp_path.iterdir()] == ["north.ledger"]
    with Ledger(path) as ledger:
        assert [state.user for state in ledger.budgets()] == [f"user-{n}" for n in range(4)]


def test_all_errors_of_a_ledger_are_errors_of_the_package():
    assert issubclass(LedgerError, FedneighborsError)


def test_a_late_void_keeps_charges_of_other_processes(path):
    lock = sqlite3.connect(path, isolation_level=None)

    def draw_and_lock():
        lock.execute("BEGIN IMMEDIATE")
        return b"noised"

    def draw():
        late.close()  # voids the charge that failed before
        return b"noised"

    with closing(lock), Ledger(path, timeout_s=0) as late, Ledger(path, timeout_s=0) as other:
        for ledger in (late, other):
            with pytest.raises(LedgerError, match="locked"):
                ledger.release("q1", draw=draw_and_lock, **ASK)
            lock.execute("ROLLBACK")
        other.release("q1", draw=draw, **{**ASK, "cost": PureDP("0.2")})

    entries, spent = state(path)
    assert spent == PureDP("0.3")
    assert [e.kind for e in entries[3:]] == ["reserved", "voided", "reserved", "released"]


def create_ledger(path):
    """Create a ledger with a budget, two releases and a failed one; return its head."""
    with Ledger(path, "north") as ledger:
        ledger.set_budget("visits", PureDP(1))
        for query in ("q1", "q2"):
            ledger.release(query, **TERMS, draw=lambda: b"noised")
        with pytest.raises(OSError, match="draw"):
            ledger.release("q3", **TERMS, draw=raise_error)
        return ledger.head()


def raise_error():
    raise OSError("draw")


TERMS = {"dataset": "visits", "user": "study", "cost": PureDP("1/8")}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET note = 'x' WHERE number = 2",
        "UPDATE entry SET first = '1/9' WHERE number = 2",
        "UPDATE entry SET at = '' WHERE number = 1",
        "UPDATE entry SET chain = 'x' WHERE number = 6",
        "DELETE FROM entry WHERE number = 3",
        "DELETE FROM entry WHERE number = 1",
        "DELETE FROM entry WHERE kind = 'released'",
        "DELETE FROM entry",
        "UPDATE charge SET first = '1/9' WHERE query = 'q1'",
        "DELETE FROM charge WHERE query = 'q3'",
        "INSERT INTO charge SELECT 'q9', dataset, user, notion, first, second FROM charge LIMIT 1",
        "UPDATE answer SET sha256 = 'x' WHERE query = 'q2'",
        "DELETE FROM answer WHERE query = 'q2'",
    ],
)
def test_an_altered_ledger_is_refused(tmp_path, statement):
    path = tmp_path / "north.ledger"
    create_ledger(path)
    with without_triggers(path) as connection:
        assert connection.execute(statement).rowcount > 0

    with pytest.raises(LedgerError, match="was altered after it was written; restore the file"):
        Ledger(path)


def test_an_unaltered_ledger_opens_again_with_the_same_head(tmp_path):
    head = create_ledger(tmp_path / "north.ledger")

    with Ledger(tmp_path / "north.ledger") as ledger:
        assert ledger.head() == head
        assert [entry.number for entry in ledger.entries()] == [1, 2, 3, 4, 5, 6]
        ledger.check_head(head)


def test_a_restored_backup_is_refused_until_it_is_reconciled(tmp_path):
    path, head, backup = (tmp_path / name for name in ("north.ledger", "head", "backup"))
    create_ledger(path)
    backup.write_bytes(path.read_bytes())
    with Ledger(path, head=head) as ledger:
        ledger.release("q4", **TERMS, draw=lambda: b"noised")
        later = ledger.head()
    path.write_bytes(backup.read_bytes())

    with pytest.raises(LedgerError, match=r"does not continue from its head: expected entry 8"):
        Ledger(path, head=head)

    reconcile(path, head)
    with Ledger(path, head=head) as ledger:
        ledger.release("q5", **TERMS, draw=lambda: b"noised")
        with pytest.raises(LedgerError, match="does not continue"):
            ledger.check_head(later)


@pytest.mark.parametrize("content", [b"", b"12", b"0:aa", b"\xff", b"-1:" + b"0" * 64])
def test_an_invalid_head_is_refused(tmp_path, content):
    create_ledger(tmp_path / "north.ledger")
    (tmp_path / "head").write_bytes(content)

    with pytest.raises(LedgerError, match="head"):
        Ledger(tmp_path / "north.ledger", head=tmp_path / "head")


def test_other_users_may_not_read_a_ledger(tmp_path):
    path = tmp_path / "north.ledger"
    with Ledger(path, "north") as ledger:
        ledger.set_budget("visits", PureDP(1))
        modes = {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    path.chmod(0o640)

    assert modes == {0o600}
    with pytest.raises(LedgerError, match="expected mode 0600: chmod 600"):
        Ledger(path)
