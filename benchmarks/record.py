"""Record of a benchmark: its printed lines, their outcomes, versions and CPU time.

    python benchmarks/record.py OUT BENCHMARK [ARGUMENTS]

`OUT` is the record (`.jsonl`), `BENCHMARK` the name of a file in this folder, such as `vectors`.
Lines appear as they are printed. `fedneighbors report OUT` writes a page of the record.
"""

import argparse
import importlib.metadata
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from fedneighbors.records import ResultTable, RunRecord, environment, write_record

PEERS = ("faiss-cpu", "rapidfuzz", "rdkit")
"""Packages for comparison that are in no other record."""


def find_outcome(line):
    """Return whether a line says that its target is met or missed."""
    outcome = "missed" if "MISSED" in line else None
    return "met" if outcome is None and line.rstrip().endswith("met") else outcome


def find_versions():
    """Return the versions of installed peers."""
    installed = {one.name.lower(): one.version for one in importlib.metadata.distributions()}
    return {name: installed[name] for name in PEERS if name in installed}


def main():
    """Run a benchmark with one thread and write its record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("benchmark")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    script = Path(__file__).with_name(f"{options.benchmark}.py")
    command = [sys.executable, "-u", str(script), *options.arguments]
    started, clock, lines = datetime.now(UTC), time.perf_counter(), []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    if process.returncode:
        raise SystemExit(f"the benchmark ended with status {process.returncode}; no record written")
    command = " ".join(["python", f"benchmarks/{script.name}", *options.arguments])
    outcomes = [find_outcome(line) for line in lines]
    table = ResultTable(
        name="lines",
        title=f"{outcomes.count('met')} targets met, {outcomes.count('missed')} missed",
        columns=("line", "target"),
        rows=tuple(zip(lines, outcomes, strict=True)),
        caption="Times are CPU times of one thread; ratios are of the same run.",
    )
    record = RunRecord(
        name=f"benchmark.{options.benchmark}",
        parameters={"command": command},
        tables=(table,),
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - clock,
        environment={**environment(), **find_versions()},
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_record(record, options.out)


if __name__ == "__main__":
    main()
