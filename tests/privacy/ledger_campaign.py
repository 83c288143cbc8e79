"""Kill processes that use a ledger, and check after each kill their output against the file.

``python -m tests.privacy.ledger_campaign --kills 1200 --out FILE`` runs it and leaves a record.
"""

import argparse
import hashlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from fedneighbors.privacy._guarantees import ZCDP
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.records import ResultTable, RunRecord, environment, write_record
from tests.privacy.ledger_worker import KINDS, N_IDS

WORKER = Path(__file__).with_name("ledger_worker.py")
POINTS = ("reserved", "drawn", "stored", "told", "failed")
STEP = Fraction(1, 400)  # by which the budget grows; some twenty releases
WHOLE_CHECK_EVERY = 50  # kills


@dataclass
class Told:
    """Output of all processes of a campaign, and the errors that the checker found."""

    kills: int = 0
    by_own_hand: Counter = field(default_factory=Counter)
    last_words: Counter = field(default_factory=Counter)
    steps: Counter = field(default_factory=Counter)
    released: dict = field(default_factory=dict)
    wrong: list = field(default_factory=list)


def campaign(folder, *, kills, seed, kind="honest", points=POINTS, own_hand=0.4, words=()):
    """Kill at least this many processes on one ledger; return their output and the errors.

    A share of them, ``own_hand``, ends by its own hand at one of the points, unless it is killed
    from outside before it gets there. How far a process comes depends on the machine, so it goes
    on until each of ``words`` has been told, but not beyond ten times as many kills.
    """
    path, told, rng = Path(folder) / "killed.ledger", Told(), random.Random(seed)
    with Ledger(path, party="north") as ledger:
        ledger.set_budget("visits", ZCDP(STEP))
    first, most = 0, 10 * kills
    while told.kills < kills or (not all(told.steps[word] for word in words) and told.kills < most):
        raise_budget(path)
        ends = [end_of(rng, points, own_hand) for _ in range(1 + rng.randrange(2))]
        processes = [start(path, rng.random(), first, kind, end) for end in ends]
        lines = [line for process, end in processes for line in kill(process, end, rng, told)]
        told.kills += len(processes)
        check(path, lines, told, whole=told.kills % WHOLE_CHECK_EVERY < 2)
        newest = max((int(query[1:]) for _, query, *_ in lines), default=first)
        first = max(first, newest - rng.randrange(N_IDS))  # some ids are requested again
    check(path, [], told, whole=True)
    return told


def raise_budget(path):
    """Leave room for some releases, but not for all future requests."""
    with Ledger(path, must_exist=True) as ledger:
        if ledger.left("visits").rho < STEP / 10:
            ledger.set_budget("visits", ZCDP(ledger.spent("visits").rho + STEP))


def end_of(rng, points, own_hand):
    """Return the point at which a process kills itself, and at which time there, if any."""
    return f"{rng.choice(points)}:{rng.randrange(1, 4)}" if rng.random() < own_hand else "none"


def start(path, seed, first, kind, end):
    arguments = [str(path), str(seed), str(first), kind, end]
    process = subprocess.Popen([sys.executable, str(WORKER), *arguments], stdout=subprocess.PIPE)
    return process, end


def kill(process, end, rng, told):
    """Read some lines, wait for a moment of random length, kill; return all lines."""
    lines = [process.stdout.readline() for _ in range(rng.randrange(1, 25))]
    for _ in range(rng.randrange(40_000)):
        pass
    os.kill(process.pid, signal.SIGKILL)
    lines += process.stdout.read().splitlines(keepends=True)
    process.stdout.close()
    if process.wait() != -signal.SIGKILL:
        raise RuntimeError(f"a worker ended by itself, with code {process.returncode}")
    words = [line.decode().split() for line in lines if line]
    if len(words) < len(lines):  # the pipe had ended before it was killed from outside
        told.by_own_hand[end.partition(":")[0]] += 1
    told.last_words[words[-1][0] if words else "nothing"] += 1
    return words


def check(path, lines, told, *, whole):
    """Compare the output since the last check with the contents of the file."""
    for word, query, *digest in lines:
        told.steps[word] += 1
        if word == "released" and told.released.setdefault(query, digest[0]) != digest[0]:
            told.wrong.append(("two answers for one id", query))
    with closing(sqlite3.connect(path)) as file:
        check_lines(file, lines, told)
        if whole:
            check_whole(file, told)


def check_lines(file, lines, told):
    for word, query in {(word, query) for word, query, *_ in lines}:
        charged = file.execute("SELECT 1 FROM charge WHERE query = ?", (query,)).fetchone()
        if word == "drawing" and not charged:
            told.wrong.append(("drawn without a charge", query))
        if word == "released":
            if not charged:
                told.wrong.append(("released without a charge", query))
            check_answer(file, query, told)


def check_answer(file, query, told):
    row = file.execute("SELECT content FROM answer WHERE query = ?", (query,)).fetchone()
    if row is None:
        told.wrong.append(("released without being stored", query))
    elif hashlib.sha256(row[0]).hexdigest() != told.released[query]:
        told.wrong.append(("another answer is stored", query))


def check_whole(file, told):
    """Return the sums of the file, without a line of the ledger's own code."""
    for query in told.released:
        check_answer(file, query, told)
    spent = Fraction(0)
    for notion, first in file.execute("SELECT notion, first FROM charge"):
        spent += Fraction(first) if notion == "zcdp" else Fraction(first) ** 2 / 2
    sql = "SELECT first FROM entry WHERE kind = 'budget' ORDER BY number DESC LIMIT 1"
    if spent > Fraction(file.execute(sql).fetchone()[0]):
        told.wrong.append(("over the budget", str(spent)))
    counts = dict(file.execute("SELECT kind, count(*) FROM entry GROUP BY kind"))
    charges, answers = (
        file.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("charge", "answer")
    )
    if charges != counts.get("reserved", 0) - counts.get("voided", 0):
        told.wrong.append(("charges without entries", str(counts)))
    if answers != counts.get("released", 0):
        told.wrong.append(("answers without entries", str(counts)))
    if file.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
        told.wrong.append(("damaged", ""))


def record(kills, seed):
    """Run the campaign on the ledger, then on each planted fault, as a run record."""
    began = time.time()
    rows, notes = [], []
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            honest = kind == "honest"
            told = campaign(folder, kills=kills if honest else 40, seed=seed, kind=kind)
        found = Counter(what for what, _ in told.wrong)
        rows.append((kind, told.kills, told.steps["released"], len(told.released), len(told.wrong)))
        notes.append(f"{kind}: found {dict(found) or 'nothing wrong'}.")
        notes.append(
            f"{kind}: told {dict(told.steps)}; last words {dict(told.last_words)}; killed by their "
            f"own hand at a chosen point {dict(told.by_own_hand)}, the others from outside."
        )
    columns = ("ledger", "kills", "answers_told", "ids_told", "violations")
    title = "Processes killed while they used a ledger, and what the checker found"
    return RunRecord(
        "privacy.ledger-kills",
        {"kills": kills, "seed": seed},
        tables=(ResultTable("kills", title, columns, tuple(rows)),),
        notes=tuple(notes),
        seconds=time.time() - began,
        environment=environment(),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    finished = record(chosen.kills, chosen.seed)
    write_record(finished, chosen.out)
    print(finished.tables[0].rows, *finished.notes, sep="\n")
