"""Process that trains candidates, so that a slow one can be stopped.

It reads the rows and then one task per line from standard input, and writes one result per line. A
line before each compilation of a kernel and one after it show that its time is not the candidate's.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fedneighbors._typing import Floats, Integers
from fedneighbors.comparison._candidates import CANDIDATES, Trial, losses_alone
from fedneighbors.comparison._schedule import COMPILATION
from fedneighbors.comparison._scores import row_losses, score_parties, score_predictions
from fedneighbors.comparison._table import PartyRows, split, split_stream
from fedneighbors.errors import MissingExtraError
from fedneighbors.kernels import watch_compilation

_BY_NAME = {candidate.name: candidate for candidate in CANDIDATES}


def run_task(
    rows: PartyRows, task: dict[str, Any], clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """Train a candidate on one split, and score its test rows."""
    kind, n_classes = task["task"], task["n_classes"]
    train, test = split(rows, kind, split_stream(task["seed"], task["repeat"]))
    trial = Trial(train, test, kind, n_classes, task["seed"])
    candidate = _BY_NAME[task["candidate"]]
    started = clock()
    try:
        predictions = candidate.fits[kind](trial)
    except MissingExtraError as error:
        return {"failure": f"needs the extra {error.extra} of fedneighbors"}
    except Exception as error:
        return {"failure": f"{type(error).__name__}: {error}"}
    if not np.isfinite(predictions.values).all():
        return {"failure": "a prediction is not a finite number"}
    result = {
        "seconds": clock() - started,
        "scores": score_predictions(test.y, predictions.values, kind),
        "parties": score_parties(test.y, predictions.values, test.parties, kind),
        "exchanges": predictions.n_exchanges,
        "bytes": predictions.n_bytes,
    }
    if task["repeat"] == 0:
        result["losses"] = _group(row_losses(test.y, predictions.values, kind), test.parties)
        if candidate.kind == "alone":
            result["baselines"] = _baselines(trial)
    return result


def _group(losses: Floats, parties: Integers) -> dict[str, list[float]]:
    """Return the losses of each party's rows."""
    return {str(party): losses[parties == party].tolist() for party in np.unique(parties)}


def _baselines(trial: Trial) -> dict[str, dict[str, list[float]]]:
    """Return the losses of the baselines that parties train alone."""
    losses: dict[str, dict[str, list[float]]] = {}
    for party in np.unique(trial.test.parties):
        own = trial.of(trial.train.parties == party, trial.test.parties == party)
        for title, values in losses_alone(own).items():
            losses.setdefault(title, {}).update(_group(values, own.test.parties))
    return losses


def main() -> None:
    """Answer tasks until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries may print
    source = sys.stdin.buffer
    rows = PartyRows.from_bytes(source.read(int(source.readline())))

    def send(line: bytes) -> None:
        answers.write(line)
        answers.flush()

    send(b"ready\n")
    with watch_compilation(lambda: send(COMPILATION), lambda: send(COMPILATION)) as clock:
        for line in source:
            send(json.dumps(run_task(rows, json.loads(line), clock)).encode() + b"\n")


if __name__ == "__main__":
    main()
