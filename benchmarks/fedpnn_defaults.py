"""FedPNN's default settings against alternatives, by ROC-AUC on imbalanced tables.

Run ``python benchmarks/fedpnn_defaults.py [--quick] [--store FILE]`` with FEDNEIGHBORS_DATA naming
the data folder. At most 2,000 rows of each set, half of them for training, over two parties. In a
set of several classes, the named one is told from all others. Each alternative changes settings of
the defaults. For each development set, the settings with the highest mean ROC-AUC on all other
development sets are scored (leave one set out). The report sets are never used for a choice.
FedPNN is compared with averaged logistic regression and pooled boosting on the same splits. Scores
in the store are not measured again.
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

from fedneighbors import FedPNNClassifier
from fedneighbors.baselines._tabular import BASELINES
from fedneighbors.datasets import load_columns

DEVELOPMENT = {
    "sick": "sick",
    "pc4": "TRUE",
    "kc1": "true",
    "thyroid-ann": "2",
    "steel-plates-fault-7": "Pastry",
    "cardiotocography-21f-10": "4",
    "satimage": "4",
    "wall-robot-navigation": "4",
    "segment": "3",
    "ozone-level-8hr": "1",
}
REPORT = {
    "breast-cancer-wisconsin-original": "malignant",
    "polish-bankruptcy-1year": "1",
    "creditcard-subset-14240": "1",
}
MAX_ROWS = 2_000
ALTERNATIVES = {
    "defaults": {},
    "normalize=minmax": {"normalize": "minmax"},
    "metric=None": {"metric": None},
    "classwise=False": {"classwise": False},
    "means=False, min_count=1": {"means": False, "min_count": 1},
    "activation=logistic": {"activation": "logistic"},
    "activation=cauchy": {"activation": "cauchy"},
    "sigma=1": {"sigma": 1.0},
    "sigma=3": {"sigma": 3.0},
    "min_count=2": {"min_count": 2},
    "min_count=10": {"min_count": 10},
    "client_threshold=2": {"client_threshold": 2.0},
    "server_threshold=0.5": {"server_threshold": 0.5},
}
RIVALS = ("averaged logistic regression", "central boosting")


def load_rows(name, positive, seed):
    """Return at most 2,000 numeric rows, missing cells NaN, and 0/1 labels."""
    table = load_columns(name)
    y = np.array([str(label).removesuffix(".0") for label in table.columns["target"]]) == positive
    columns = []
    for column in table.without(["target"]).columns.values():
        if column.dtype == np.object_:  # categories by their alphabetical position
            texts = sorted({text for text in column.tolist() if text is not None})
            column = [np.nan if text is None else texts.index(text) for text in column.tolist()]
        columns.append(np.asarray(column, np.float64))
    keep = np.arange(len(y))
    if len(y) > MAX_ROWS:
        keep, _ = train_test_split(keep, train_size=MAX_ROWS, stratify=y, random_state=seed)
    return np.column_stack(columns)[keep], y[keep].astype(int)


def score(name, positive, method, seed):
    """Return the ROC-AUC of a method on half of a set."""
    x, y = load_rows(name, positive, seed)
    train, test = train_test_split(np.arange(len(y)), test_size=0.5, stratify=y, random_state=seed)
    owners = np.random.default_rng(seed).permutation(len(train)) % 2
    if method in ALTERNATIVES:
        model = FedPNNClassifier(classes=(0, 1), **ALTERNATIVES[method])
    else:
        model = BASELINES[method]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x[train], y[train], parties=owners)
        return float(roc_auc_score(y[test], model.predict_proba(x[test])[:, 1]))


def measure(sets, methods, seeds, store):
    """Return the mean ROC-AUC by set and method; store all scores."""
    found = {}
    if store is not None and store.exists():
        found = dict(map(json.loads, store.read_text().splitlines()))
    rows = []
    for name, positive in sets.items():
        row = []
        for method in methods:
            values = []
            for seed in seeds:
                key = f"{name}|{method}|{seed}"
                if key not in found:
                    found[key] = score(name, positive, method, seed)
                    if store is not None:
                        with store.open("a") as file:
                            file.write(json.dumps([key, found[key]]) + "\n")
                values.append(found[key])
            row.append(np.mean(values))
        rows.append(row)
    return np.array(rows)


def main():
    """Print scores by settings, the choices, and scores of report sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three sets, one seed")
    parser.add_argument("--store", type=Path, help="file of scores, for resuming")
    parser.add_argument("--seeds", type=int, default=2, help="number of splits of each set")
    options = parser.parse_args()
    sets = dict(list(DEVELOPMENT.items())[: 3 if options.quick else None])
    seeds = range(1 if options.quick else options.seeds)
    names = list(ALTERNATIVES)
    scores = measure(sets, names, seeds, options.store)
    rivals = measure(sets, RIVALS, seeds, options.store)
    gaps = scores - scores[:, :1]
    print(f"{'settings':32} mean ROC-AUC, less defaults, sets won/lost by .005")
    for k in np.argsort(-scores.mean(axis=0), kind="stable"):
        won, lost = (gaps[:, k] > 0.005).sum(), (gaps[:, k] < -0.005).sum()
        print(f"{names[k]:32} {scores[:, k].mean():.4f} {gaps[:, k].mean():+.4f} {won}/{lost}")
    print(f"\n{'left out':32} chosen on the others: ROC-AUC; defaults, {', '.join(RIVALS)}")
    chosen = []
    for row, name in enumerate(sets):
        best = int(np.delete(scores, row, axis=0).mean(axis=0).argmax())
        chosen.append(scores[row, best])
        print(f"{name:32} {names[best]}: {chosen[-1]:.3f}; {scores[row, 0]:.3f}, "
              f"{', '.join(f'{value:.3f}' for value in rivals[row])}")  # fmt: skip
    print(f"{'mean':32} {np.mean(chosen):.4f}; {scores[:, 0].mean():.4f}, "
          f"{', '.join(f'{value:.4f}' for value in rivals.mean(axis=0))}")  # fmt: skip
    best = names[int(scores.mean(axis=0).argmax())]
    methods = [best, "defaults", *RIVALS]
    report = measure(REPORT, methods, seeds, options.store)
    print(f"\n{'report set':32} {', '.join(methods)}")
    for name, row in zip(REPORT, report, strict=True):
        print(f"{name:32} {', '.join(f'{value:.3f}' for value in row)}")


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        main()
