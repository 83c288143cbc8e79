"""Process that trains candidates, so that a slow one can be stopped.

It reads the rows and then one task per line from standard input, and writes one result per line.
"""

import json
import os
import sys
import time
from importlib import import_module
from typing import Any

import numpy as np

from fedneighbors.comparison._candidates import CANDIDATES, Trial
from fedneighbors.comparison._scores import score_parties, score_predictions
from fedneighbors.comparison._table import PartyRows, split

_BY_NAME = {candidate.name: candidate for candidate in CANDIDATES}


def run_task(rows: PartyRows, task: dict[str, Any]) -> dict[str, Any]:
    """Train a candidate on one split, and score its test rows."""
    kind, n_classes = task["task"], task["n_classes"]
    # not the stream of a partition into parties with the same seed, see row_roles
    rng = np.random.default_rng([task["seed"], 2, task["repeat"]])
    train, test = split(rows, kind, rng)
    trial = Trial(train, test, kind, n_classes, task["seed"])
    candidate = _BY_NAME[task["candidate"]]
    if candidate.module:
        try:
            import_module(candidate.module)
        except ImportError:
            return {"failure": f"needs the optional package {candidate.module}"}
    started = time.perf_counter()
    try:
        predictions = candidate.fits[kind](trial)
    except Exception as error:
        return {"failure": f"{type(error).__name__}: {error}"}
    if not np.isfinite(predictions.values).all():
        return {"failure": "a prediction is not a finite number"}
    return {
        "seconds": time.perf_counter() - started,
        "scores": score_predictions(test.y, predictions.values, kind),
        "parties": score_parties(test.y, predictions.values, test.parties, kind),
        "exchanges": predictions.n_exchanges,
        "bytes": predictions.n_bytes,
    }


def main() -> None:
    """Answer tasks until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    source = sys.stdin.buffer
    rows = PartyRows.from_bytes(source.read(int(source.readline())))
    print("ready", file=answers, flush=True)
    for line in source:
        print(json.dumps(run_task(rows, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
