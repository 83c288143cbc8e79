"""Recommendations of ``compare`` against the best candidate on rows that it never saw.

Eight real tables are each split over four parties in three ways: at random, with label skew, and by
the first principal component of the features. A comparison of 1,500 rows recommends a method within
100 seconds of CPU time, so that other load on the machine has no effect. Then all candidates are
trained on these rows and scored on up to 4,000 others. A recommendation holds if its score is
within .01 of the best score; the best one is that of all candidates, with chance on its side.

Prints a line for each case, and the share that holds. Finished cases are stored, and the same
command resumes. Run ``python benchmarks/recommendations.py [--sets NAME ...] [--store FOLDER]
[--without-networks]``.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedneighbors.comparison._candidates import CANDIDATES, Trial
from fedneighbors.comparison._schedule import ResultFile, Schedule, task_settings
from fedneighbors.comparison._scores import primary_metric, primary_score
from fedneighbors.comparison._summary import Summary
from fedneighbors.comparison._table import PartyRows
from fedneighbors.comparison._worker import run_task
from fedneighbors.datasets import load
from fedneighbors.partition import by_time, dirichlet, iid

SETS = (
    "spambase", "sick", "adult", "cpu-act", "pol", "thyroid-ann", "wall-robot-navigation",
    "satimage",
)  # fmt: skip
N_PARTIES, N_ROWS, N_FRESH = 4, 1_500, 4_000
BUDGET_S, SHORT_BUDGET_S = 100.0, 40.0
MAX_LOSS, MIN_SHARE = 0.01, 0.9


def split_parties(kind, x, y, seed):
    """Return the party of each row."""
    if kind == "iid":
        return iid(len(y), N_PARTIES, seed=seed)
    if kind == "label skew":
        return dirichlet(y, N_PARTIES, alpha=0.5, min_rows=40, seed=seed)
    filled = SimpleImputer(strategy="median", keep_empty_features=True)
    component = make_pipeline(filled, StandardScaler(), PCA(1, random_state=0)).fit_transform(x)
    return by_time(component[:, 0], N_PARTIES)


def draw_rows(name, kind, seed):
    """Return rows for a comparison, and fresh rows of the same parties."""
    data = load(name, keep_missing=True)
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(data.n_rows)[: N_ROWS + N_FRESH]
    x, y = data.x[chosen], np.unique(data.y[chosen], return_inverse=True)[1].astype(np.int64)
    parties = np.unique(split_parties(kind, x, y, seed), return_inverse=True)[1].astype(np.int64)
    rows = PartyRows(x, y, parties)
    is_used = np.arange(len(y)) < N_ROWS
    return rows.select(is_used), rows.select(~is_used)


class CpuWorker:
    """Worker in this process, with a clock of the CPU seconds of all its trainings."""

    def __init__(self, rows):
        self.rows, self.seconds = rows, 0.0

    def run(self, task, limit_s):
        """Return the result of a task, or a failure after its limit."""
        if limit_s <= 0:
            return {"failure": "no time left", "seconds": 0.0}
        started = time.process_time()
        result = run_task(self.rows, task)
        seconds = time.process_time() - started
        self.seconds += min(seconds, limit_s)
        if seconds > limit_s:
            return {"failure": f"stopped after {limit_s:.0f} s", "seconds": limit_s}
        return {**result, "seconds": seconds} if "scores" in result else result


def recommend(rows, candidates, n_classes, seed, budget_s):
    """Return the summary of a comparison within a budget of CPU seconds."""
    worker, metric = CpuWorker(rows), primary_metric("classification", n_classes)
    schedule = Schedule(
        tuple(candidate.name for candidate in candidates),
        frozenset(c.name for c in candidates if c.kind in ("alone", "pooled")),
        frozenset(),
        task_settings("classification", n_classes, seed),
        metric,
        budget_s,
        ResultFile(None, ""),
        lambda *_: None,
        lambda: worker.seconds,
    )
    schedule.run(worker)
    results, names = schedule.file.results, [str(i) for i in range(N_PARTIES)]
    sizes = np.bincount(rows.parties).tolist()
    summary = Summary(candidates, results, "classification", metric, names, sizes)
    return summary


def score_fresh(rows, fresh, candidates, n_classes):
    """Return the score of each candidate on fresh rows."""
    trial = Trial(rows, fresh, "classification", n_classes, 0)
    return {
        candidate.name: primary_score(
            fresh.y, candidate.fits["classification"](trial).values, "classification"
        )
        for candidate in candidates
        if candidate.kind != "pooled"
    }


def run_case(name, kind, seed, store, *, with_networks):
    """Return the result of a case, stored or computed."""
    candidates = [
        c for c in CANDIDATES if c.kind != "private" and (with_networks or c.module != "torch")
    ]
    done = store / f"{name}-{kind.replace(' ', '-')}-{seed}-{len(candidates)}.json"
    if done.exists():
        return json.loads(done.read_text())
    rows, fresh = draw_rows(name, kind, seed)
    n_classes = int(max(rows.y.max(), fresh.y.max())) + 1
    budget_s = BUDGET_S if with_networks else SHORT_BUDGET_S
    summary = recommend(rows, candidates, n_classes, seed, budget_s)
    scores = score_fresh(rows, fresh, candidates, n_classes)
    recommended, best = summary.recommended.name, max(scores, key=scores.get)
    case = {
        "set": name,
        "partition": kind,
        "seed": seed,
        "metric": summary.metric,
        "splits": len(summary.splits(recommended)),
        "recommended": recommended,
        "best": best,
        "loss": scores[best] - scores[recommended],
        "fresh": scores,
        "trainings": [
            (name, repeat, result["seconds"], result["scores"][summary.metric])
            for (name, repeat), result in summary.results.items()
            if "scores" in result
        ],
    }
    done.write_text(json.dumps(case))
    return case


def main():
    """Print a line for each case, and the share that holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=SETS, help="names of tables")
    parser.add_argument("--seed", type=int, default=0, help="seed of rows, parties and splits")
    parser.add_argument(
        "--store",
        type=Path,
        default=Path(tempfile.gettempdir()) / "fedneighbors-recommendations",
        help="folder of finished cases",
    )
    parser.add_argument(
        "--without-networks",
        action="store_true",
        help="leave out the four candidates that train networks; 40 s of CPU time a comparison",
    )
    parser.add_argument("--out", type=Path, help="JSON file for the cases")
    arguments = parser.parse_args()
    arguments.store.mkdir(parents=True, exist_ok=True)
    rows, _ = draw_rows("iris", "iid", 0)
    for candidate in CANDIDATES:  # compiles, which is not part of a budget
        if candidate.kind == "private" or (arguments.without_networks and candidate.module):
            continue
        settings = task_settings("classification", 3, 0)
        run_task(rows, {**settings, "candidate": candidate.name, "repeat": 0})
    cases = []
    for kind in ("label skew", "feature skew", "iid"):
        for name in arguments.sets:
            case = run_case(
                name,
                kind,
                arguments.seed,
                arguments.store,
                with_networks=not arguments.without_networks,
            )
            cases.append(case)
            print(
                f"{name:22} {kind:12} {case['metric']:8} {case['splits']:2} splits: "
                f"{case['recommended']:24} {case['fresh'][case['recommended']]:.4f}, best "
                f"{case['best']:24} {case['fresh'][case['best']]:.4f} "
                f"{'holds' if case['loss'] <= MAX_LOSS else 'FAILS'}",
                flush=True,
            )
    if arguments.out:
        arguments.out.write_text(json.dumps(cases, indent=1) + "\n", encoding="utf-8")
    share = np.mean([case["loss"] <= MAX_LOSS for case in cases])
    met = "met" if share >= MIN_SHARE else "MISSED"
    print(f"{share:.0%} of {len(cases)} recommendations hold (target {MIN_SHARE:.0%}: {met})")


if __name__ == "__main__":
    main()
