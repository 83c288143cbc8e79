"""Order and time limits of the trainings."""

import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import IO, Any, Self

from fedneighbors.comparison._table import PartyRows, Task
from fedneighbors.errors import DataError

MAX_REPEATS = 10
MIN_REPEATS = 3
"""Splits below which candidates are dropped instead; an interval of two has a t value of 12.7."""

COMPILATION = b"compilation\n"
"""Line of the worker before the compilation of a kernel, and after it."""

_MIN_LIMIT_S = 0.1
_FIRST_SPLIT = 0.6  # largest fraction of the time for the first split

Result = dict[str, Any]
Progress = Callable[[int, int, str], None]


class Worker:
    """Child process that trains candidates; it is started again after a time-out.

    Its clock stops while kernels are compiled, which happens once on a machine.

    Parameters
    ----------
    rows : PartyRows
        All rows.
    seconds : float
        Time budget; no answer is awaited after it.
    """

    def __init__(self, rows: PartyRows, seconds: float) -> None:
        self._rows = rows.to_bytes()
        self._started = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._start_s = 0.0  # duration of the last start
        self.seconds = seconds
        self.compilation_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def clock(self) -> float:
        """Return the seconds since the start, without those of compilation."""
        return time.monotonic() - self._started - self.compilation_s

    def left(self) -> float:
        """Return the seconds before the end of the budget."""
        return self.seconds - self.clock()

    def run(self, task: Mapping[str, Any], limit_s: float, note: Callable[[str], object]) -> Result:
        """Return the result of a task, or a failure after ``limit_s`` seconds.

        Calls ``note`` before and after a kernel is compiled.
        """
        late: Result = {"failure": "no time left", "seconds": 0.0}
        start_s = 0.0 if self._process else self._start_s
        if min(limit_s, self.left() - start_s) < _MIN_LIMIT_S:
            return late
        process = self._process or self._start()
        limit_s = min(limit_s, self.left())
        if limit_s < _MIN_LIMIT_S:
            return late
        self._send(json.dumps(task).encode() + b"\n")
        end = self.clock() + limit_s
        line = self._read(limit_s)
        while line == COMPILATION:
            started = time.monotonic()
            note(", compiling kernels, once")
            line = self._lines.get()
            self.compilation_s += time.monotonic() - started
            note("")
            if line == COMPILATION:
                line = self._read(end - self.clock())
        if line and line.endswith(b"\n"):
            return dict(json.loads(line))
        self._stop()
        if line is not None:
            return {"failure": f"its process ended with status {process.returncode}"}
        return {"failure": f"stopped after {limit_s:.0f} s", "seconds": limit_s}

    def _start(self) -> "subprocess.Popen[bytes]":
        started = time.monotonic()
        self._process = process = subprocess.Popen(  # its own session: Ctrl-C reaches it through us
            [sys.executable, "-m", "fedneighbors.comparison._worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},  # threads that wait do not compute
        )
        assert process.stdout
        self._lines = queue.SimpleQueue()
        Thread(target=_forward, args=(process.stdout, self._lines), daemon=True).start()
        self._send(b"%d\n" % len(self._rows) + self._rows)
        if self._read(self.left()) == b"":
            self._lines.put(b"")  # the end is the answer to the task
        self._start_s = time.monotonic() - started
        return process

    def _send(self, line: bytes) -> None:
        assert self._process
        assert self._process.stdin
        with suppress(BrokenPipeError):  # the answer is the end of its lines
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _read(self, limit_s: float) -> bytes | None:
        """Return a line, an empty one after the last, None if late."""
        try:
            return self._lines.get(timeout=max(limit_s, 0))
        except queue.Empty:
            return None

    def _stop(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # its own children, too
            assert self._process.stdin
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.wait()
            self._process = None


def _forward(stream: IO[bytes], lines: "queue.SimpleQueue[bytes]") -> None:
    """Put a stream's lines into a queue, then an empty one."""
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(b"")


@dataclass
class ResultFile:
    """Results of finished trainings, one JSON line each, so that a comparison can resume.

    Parameters
    ----------
    path : path or None
        The file; None keeps the results in memory only.
    digest : str
        Digest of rows and settings. A file of another digest raises DataError.
    results : dict
        Result of each training, by candidate and split.
    """

    path: Path | None
    digest: str
    results: dict[tuple[str, int], Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None:
            return
        if not self.path.exists():
            self.path.write_text(json.dumps({"digest": self.digest}) + "\n", encoding="utf-8")
            return
        lines = self.path.read_text(encoding="utf-8").splitlines()
        with suppress(ValueError, KeyError, TypeError):
            if json.loads(lines[0])["digest"] == self.digest:
                self._read(lines[1:])
                return
        raise DataError(
            f"{self.path} has results of other rows or settings; delete it, or choose another file"
        )

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            with suppress(json.JSONDecodeError):  # the last line of an interrupted run
                entry = json.loads(line)
                self.results[entry["candidate"], entry["repeat"]] = entry["result"]

    def add(self, candidate: str, repeat: int, result: Result) -> None:
        """Store a result.

        A failure is not written, so that another run tries again.
        """
        self.results[candidate, repeat] = result
        if self.path is not None and "scores" in result:
            entry = {"candidate": candidate, "repeat": repeat, "result": result}
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n" + json.dumps(entry) + "\n")


@dataclass
class Schedule:
    """Trains candidates on repeated splits within a time budget.

    The first split trains every candidate, each within a share of the time; those that were stopped
    are trained again if the others leave enough. Then as many splits follow as the time allows, up
    to ten. If fewer than three fit, private variants are dropped, then the candidates with the
    lowest scores. After three splits, only candidates that may still be the best are trained.

    Parameters
    ----------
    names : sequence of str
        Candidates, from the fastest to the slowest.
    kept : frozenset of str
        Candidates that are never dropped.
    dropped_first : frozenset of str
        Candidates that are dropped before all others, and after three splits.
    settings : mapping
        Fields of every task.
    metric : str
        Name of the score that decides.
    worker : Worker
        Trains within its time budget.
    file : ResultFile
        Finished results.
    progress : callable
        Called with the finished trainings, their expected number, and the current step.
    notes : list of str
        Sentences about what was left out.
    """

    names: tuple[str, ...]
    kept: frozenset[str]
    dropped_first: frozenset[str]
    settings: Mapping[str, Any]
    metric: str
    worker: Worker
    file: ResultFile
    progress: Progress
    notes: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Train until the splits or the time are used up."""
        first = [name for name in self.names if name not in self.dropped_first]
        for position, name in enumerate(first):
            left = _FIRST_SPLIT * self.worker.seconds - self.worker.clock()
            # a third of the rest for those with which the others are compared, twice a fair share
            # for the others
            divisor = 3.0 if name in self.kept else (len(first) - position + 1) / 2
            self._train(name, 0, left / divisor, total=len(self.names))
        self._retry()
        for name in self.names:
            if name in self.dropped_first:
                self._train(name, 0, self._spare(), total=len(self.names))
        names = self._affordable(self._finished())
        for repeat in range(1, MAX_REPEATS):
            if repeat >= MIN_REPEATS:
                names = self._contenders(names, repeat)
            needed = self._seconds(names)
            n_more = min(MAX_REPEATS - repeat, int(self.worker.left() / needed))
            if not n_more:
                self.notes.append(
                    f"The time allowed {repeat} of {MAX_REPEATS} splits; more minutes give "
                    "narrower intervals."
                )
                break
            total = len(self.file.results) + n_more * len(names)
            for name in names:
                self._train(name, repeat, self.worker.left(), total=total)
            if any("scores" not in self.file.results[name, repeat] for name in names):
                self.notes.append(f"Split {repeat + 1} was not finished, and is left out.")
                break

    def _train(self, name: str, repeat: int, limit_s: float, *, total: int) -> None:
        def show(step: str = "") -> None:
            self.progress(len(self.file.results), total, f"split {repeat + 1}: {name}{step}")

        show()
        if (name, repeat) not in self.file.results:
            task = {**self.settings, "candidate": name, "repeat": repeat}
            result = self.worker.run(task, limit_s, show)
            self.file.add(name, repeat, result)

    def _finished(self) -> list[str]:
        """Return the candidates with scores on the first split."""
        return [name for name in self.names if "scores" in self.file.results.get((name, 0), {})]

    def _spare(self) -> float:
        """Return the time that the next splits of all candidates leave."""
        needed = (MIN_REPEATS - 1) * self._seconds(self._finished())
        return self.worker.left() - needed

    def _retry(self) -> None:
        """Repeat stopped trainings in the time that the others leave."""
        for name in self.names:
            result = self.file.results.get((name, 0), {})
            if "scores" in result or "seconds" not in result:
                continue
            limit_s = self._spare() / MIN_REPEATS  # so that it can be trained on as many splits
            if limit_s > result["seconds"]:
                del self.file.results[name, 0]
                self._train(name, 0, limit_s, total=len(self.names))

    def _affordable(self, names: list[str]) -> list[str]:
        """Return the best candidates for which the time suffices."""
        remaining = self.worker.left()
        dropped = []
        while (MIN_REPEATS - 1) * self._seconds(names) > remaining:
            others = [name for name in names if name in self.dropped_first]
            if not others:
                others = sorted(set(names) - self.kept, key=lambda name: -self._score(name, 0))[1:]
            if not others:
                break
            dropped.append(min(others, key=lambda name: self._score(name, 0)))
            names = [name for name in names if name != dropped[-1]]
        # an earlier run of the same comparison may have trained the others
        if dropped := [name for name in dropped if (name, 1) not in self.file.results]:
            self.notes.append(
                f"For lack of time, only the first split was used for {', '.join(dropped)}."
            )
        return names

    def _contenders(self, names: list[str], n_repeats: int) -> list[str]:
        """Return the kept candidates, and those that may be the best.

        Others are more than two standard errors of their paired difference below the best one. The
        error is the median over candidates, as there are few splits.
        """
        scores = {name: [self._score(name, i) for i in range(n_repeats)] for name in names}
        rivals = [name for name in names if name not in self.kept | self.dropped_first]
        if not rivals:
            return names
        best = max(rivals, key=lambda name: statistics.mean(scores[name]))
        gaps = {
            name: [b - a for a, b in zip(scores[name], scores[best], strict=True)]
            for name in rivals
        }
        deviations = [statistics.stdev(gaps[name]) for name in rivals if name != best]
        limit = 2 * statistics.median(deviations or [0.0]) / n_repeats**0.5
        close = {name for name in rivals if statistics.mean(gaps[name]) <= limit}
        return [name for name in names if name in self.kept | close]

    def _score(self, name: str, repeat: int) -> float:
        return float(self.file.results[name, repeat]["scores"][self.metric] or 0.0)

    def _seconds(self, names: list[str]) -> float:
        """Return the expected duration of a split."""
        seconds = [float(self.file.results[name, 0]["seconds"]) for name in names]
        return max(sum(seconds), 1e-9)


def task_settings(task: Task, n_classes: int, seed: int) -> dict[str, Any]:
    """Return the fields that all tasks of a comparison share."""
    return {"task": task, "n_classes": n_classes, "seed": seed}
