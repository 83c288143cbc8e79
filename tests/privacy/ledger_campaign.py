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
POINTS = ("reserved", "drawn", "stored", "published", "failed")
STEP = Fraction(1, 400)  # added to a spent budget; enough for about twenty releases
FULL_CHECK_EVERY = 50  # kills


@dataclass
class Outcome:
    """Output of all processes of a campaign, and the errors that the checker found."""

    kills: int = 0
    self_kills: Counter = field(default_factory=Counter)  # by point
    last_words: Counter = field(default_factory=Counter)  # first words of the last lines
    steps: Counter = field(default_factory=Counter)  # lines by first word
    released: dict = field(default_factory=dict)  # id -> digest of the answer
    errors: list = field(default_factory=list)


def campaign(folder, *, kills, seed, kind="honest", points=POINTS, self_kill_rate=0.4, words=()):
    """Kill at least this many processes that use one ledger; return the outcome.

    The fraction ``self_kill_rate`` of the processes kill themselves at one of the points, unless
    they are killed from outside before. The number of steps of a process depends on the machine:
    the campaign ends when each of ``words`` was printed, at the latest after ten times the kills.
    """
    path, outcome, rng = Path(folder) / "killed.ledger", Outcome(), random.Random(seed)
    with Ledger(path, party="north") as ledger:
        ledger.set_budget("visits", ZCDP(STEP))
    first, max_kills = 0, 10 * kills
    while outcome.kills < kills or (
        not all(outcome.steps[word] for word in words) and outcome.kills < max_kills
    ):
        raise_budget(path)
        ends = [choose_end(rng, points, self_kill_rate) for _ in range(1 + rng.randrange(2))]
        processes = [start(path, rng.random(), first, kind, end) for end in ends]
        lines = [line for process, end in processes for line in kill(process, end, rng, outcome)]
        outcome.kills += len(processes)
        check(path, lines, outcome, whole=outcome.kills % FULL_CHECK_EVERY < 2)
        newest = max((int(query[1:]) for _, query, *_ in lines), default=first)
        first = max(first, newest - rng.randrange(N_IDS))  # some ids are requested again
    check(path, [], outcome, whole=True)
    return outcome


def raise_budget(path):
    """Raise a spent budget, enough for some releases but not for all future requests."""
    with Ledger(path, must_exist=True) as ledger:
        if ledger.left("visits").rho < STEP / 10:
            ledger.set_budget("visits", ZCDP(ledger.spent("visits").rho + STEP))


def choose_end(rng, points, self_kill_rate):
    """Choose the point at which a process kills itself and the visit to it, or "none"."""
    if rng.random() < self_kill_rate:
        return f"{rng.choice(points)}:{rng.randrange(1, 4)}"
    return "none"


def start(path, seed, first, kind, end):
    arguments = [str(path), str(seed), str(first), kind, end]
    process = subprocess.Popen([sys.executable, str(WORKER), *arguments], stdout=subprocess.PIPE)
    return process, end


def kill(process, end, rng, outcome):
    """Read some lines, wait for a random time, kill the process; return all lines."""
    lines = [process.stdout.readline() for _ in range(rng.randrange(1, 25))]
    for _ in range(rng.randrange(40_000)):
        pass
    os.kill(process.pid, signal.SIGKILL)
    lines += process.stdout.read().splitlines(keepends=True)
    process.stdout.close()
    if process.wait() != -signal.SIGKILL:
        raise RuntimeError(f"a worker ended without a kill, with code {process.returncode}")
    words = [line.decode().split() for line in lines if line]
    if len(words) < len(lines):  # it had killed itself: its pipe was closed already
        outcome.self_kills[end.partition(":")[0]] += 1
    outcome.last_words[words[-1][0] if words else "nothing"] += 1
    return words


def check(path, lines, outcome, *, whole):
    """Compare the output since the last check with the contents of the file."""
    for word, query, *digest in lines:
        outcome.steps[word] += 1
        if word == "released" and outcome.released.setdefault(query, digest[0]) != digest[0]:
            outcome.errors.append(("two answers for one id", query))
    with closing(sqlite3.connect(path)) as file:
        check_lines(file, lines, outcome)
        if whole:
            check_whole(file, outcome)


def check_lines(file, lines, outcome):
    for word, query in {(word, query) for word, query, *_ in lines}:
        charged = file.execute("SELECT 1 FROM charge WHERE query = ?", (query,)).fetchone()
        if word == "drawing" and not charged:
            outcome.errors.append(("drawn without a charge", query))
        if word == "released":
            if not charged:
                outcome.errors.append(("released without a charge", query))
            check_answer(file, query, outcome)


def check_answer(file, query, outcome):
    row = file.execute("SELECT content FROM answer WHERE query = ?", (query,)).fetchone()
    if row is None:
        outcome.errors.append(("released without being stored", query))
    elif hashlib.sha256(row[0]).hexdigest() != outcome.released[query]:
        outcome.errors.append(("another answer is stored", query))


def check_whole(file, outcome):
    """Check all answers and sums of the file without code of the ledger."""
    for query in outcome.released:
        check_answer(file, query, outcome)
    spent = Fraction(0)
    for notion, first in file.execute("SELECT notion, first FROM charge"):
        spent += Fraction(first) if notion == "zcdp" else Fraction(first) ** 2 / 2
    sql = "SELECT first FROM entry WHERE kind = 'budget' ORDER BY number DESC LIMIT 1"
    if spent > Fraction(file.execute(sql).fetchone()[0]):
        outcome.errors.append(("over the budget", str(spent)))
    counts = dict(file.execute("SELECT kind, count(*) FROM entry GROUP BY kind"))
    charges, answers = (
        file.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("charge", "answer")
    )
    if charges != counts.get("reserved", 0) - counts.get("voided", 0):
        outcome.errors.append(("charges without entries", str(counts)))
    if answers != counts.get("released", 0):
        outcome.errors.append(("answers without entries", str(counts)))
    if file.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
        outcome.errors.append(("damaged", ""))


def run_campaigns(kills, seed):
    """Run the campaign on the ledger and on each planted fault; return a run record."""
    started = time.time()
    rows, notes = [], []
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            n_kills = kills if kind == "honest" else 40
            outcome = campaign(folder, kills=n_kills, seed=seed, kind=kind)
        found = Counter(error for error, _ in outcome.errors)
        rows.append(
            (
                kind,
                outcome.kills,
                outcome.steps["released"],
                len(outcome.released),
                len(outcome.errors),
            )
        )
        notes.append(f"{kind}: found {dict(found) or 'nothing wrong'}.")
        notes.append(
            f"{kind}: steps {dict(outcome.steps)}; last words {dict(outcome.last_words)}; killed "
            f"themselves at a chosen point {dict(outcome.self_kills)}, the others from outside."
        )
    columns = ("ledger", "kills", "answers_told", "ids_told", "violations")
    title = "Processes killed while they used a ledger, and violations found by the checker"
    return RunRecord(
        "privacy.ledger-kills",
        {"kills": kills, "seed": seed},
        tables=(ResultTable("kills", title, columns, tuple(rows)),),
        notes=tuple(notes),
        seconds=time.time() - started,
        environment=environment(),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    result = run_campaigns(arguments.kills, arguments.seed)
    write_record(result, arguments.out)
    print(result.tables[0].rows, *result.notes, sep="\n")
