"""ROC-AUC and CPU seconds of pooled histogram boosting, compared with scikit-learn.

Prints, for each table of the data folder, the mean ROC-AUC over folds (for several classes that of
each against the rest) of both estimators with their default settings and one thread, the CPU
seconds of their trainings, which take turns, and the ratio. Then the mean difference of ROC-AUC and
the ratio of total CPU seconds. Compilation is excluded.
Run ``python benchmarks/boosting.py [--quick] [--max-cells N]``.
"""

import argparse
import time

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from fedneighbors.baselines import FederatedBoostingClassifier
from fedneighbors.datasets import available, load

MAX_RATIO, MAX_LOSS = 3.0, 0.005
QUICK = ("segment", "sick", "spambase")
MODELS = {
    "ours": FederatedBoostingClassifier,
    "sklearn": lambda: HistGradientBoostingClassifier(random_state=0),
}


def score(model, x, y):
    """Return the ROC-AUC, the mean over classes of each against the rest."""
    probabilities = model.predict_proba(x)
    scores = probabilities[:, 1] if probabilities.shape[1] == 2 else probabilities
    return roc_auc_score(y, scores, multi_class="ovr")


def compare(x, y, n_folds):
    """Return the mean ROC-AUC and total CPU seconds of each model."""
    results = {name: ([], []) for name in MODELS}
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=0)
    for train, test in folds.split(x, y):
        for name, make in MODELS.items():
            start = time.process_time()
            model = make().fit(x[train], y[train])
            results[name][1].append(time.process_time() - start)
            results[name][0].append(score(model, x[test], y[test]))
    return {name: (np.mean(scores), sum(seconds)) for name, (scores, seconds) in results.items()}


def main():
    """Print a line for each table, and the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three tables, two folds")
    parser.add_argument(
        "--max-cells", type=int, default=2_000_000, help="largest table, cells times trees"
    )
    arguments = parser.parse_args()
    n_folds = 2 if arguments.quick else 3
    FederatedBoostingClassifier(max_iter=2).fit(np.eye(4)[:, :2], [0, 1, 0, 1])
    names = [entry.name for entry in available() if "tabular" in entry.source]
    losses, totals = [], dict.fromkeys(MODELS, 0.0)
    for name in QUICK if arguments.quick else names:
        data = load(name, keep_missing=True)
        y = np.unique(data.y, return_inverse=True)[1]
        n_trees = 1 if y.max() == 1 else y.max() + 1  # in an iteration
        if data.x.size * n_trees > arguments.max_cells:
            print(f"{name:24} left out: {data.x.size * n_trees} cells", flush=True)
            continue
        with threadpool_limits(1):
            results = compare(data.x, y, n_folds)
        (ours, seconds), (theirs, peer) = results["ours"], results["sklearn"]
        losses.append(theirs - ours)
        for model in MODELS:
            totals[model] += results[model][1]
        print(
            f"{name:24} {data.x.shape[0]:6} x {data.x.shape[1]:3}, {y.max() + 1:2} classes: "
            f"ROC-AUC {ours:.4f}, sklearn {theirs:.4f}; "
            f"CPU {seconds:6.2f} s, sklearn {peer:6.2f} s ({seconds / peer:.2f}x)",
            flush=True,
        )
    loss, ratio = np.mean(losses), totals["ours"] / totals["sklearn"]
    met = ["met" if value else "MISSED" for value in (loss <= MAX_LOSS, ratio <= MAX_RATIO)]
    print(
        f"{len(losses)} tables: ROC-AUC {-loss:+.4f} on average (target -{MAX_LOSS}: {met[0]}); "
        f"CPU {ratio:.2f}x (target {MAX_RATIO}x: {met[1]})"
    )


if __name__ == "__main__":
    main()
