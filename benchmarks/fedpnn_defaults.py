"""FedPNN's default settings against alternatives and baselines, by ROC-AUC.

Run ``python benchmarks/fedpnn_defaults.py [--quick] [--store FILE]`` with FEDNEIGHBORS_DATA naming
the data folder. Half of the rows of each set are for training, over two parties. In a set of
several classes, the named one is told from all others. For each development set, the settings with
the highest mean ROC-AUC on all other development sets are scored (leave one set out). The report
sets are never used for a choice: there the defaults are compared with averaged logistic regression
on the same rows, with themselves on tables whose missing cells were replaced by medians, and with
networks of fewer and more centers. Scores in the store are not measured again.
"""

import argparse
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.impute import SimpleImputer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

from experiments.fedpnn.real import interval
from fedneighbors import FedPNNClassifier
from fedneighbors.baselines._tabular import BASELINES
from fedneighbors.datasets import load_columns
from fedneighbors.metrics import balanced_accuracy

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
    "adult": "0",
    "qsar-biodeg": "RB",
    "spambase": "1",
    "cpu-act": "P",
    "pol": "N",
    "load_digits": "8",
    "load_wine": "1",
    "load_breast_cancer": "0",
}
BUNDLED = {f.__name__: f for f in (load_digits, load_wine, load_breast_cancer)}
SETS = DEVELOPMENT | REPORT
GAPS = ("polish-bankruptcy-1year", "breast-cancer-wisconsin-original", "sick")
MAX_ROWS, MAX_REPORT_ROWS = 2_000, 15_000
GAUSSIAN, LOGISTIC, CAUCHY = (
    {"activation": activation, "ridge": 0.03, "boost": 3.0}
    for activation in ("gaussian", "logistic", "cauchy")
)
ALTERNATIVES = {  # "cauchy, ridge=0.1" has the defaults
    "gaussian, ridge=0.03": GAUSSIAN,
    "logistic, ridge=0.03": LOGISTIC,
    "logistic, ridge=0.1": LOGISTIC | {"ridge": 0.1},
    "cauchy, ridge=0.03": CAUCHY,
    "cauchy, ridge=0.1": CAUCHY | {"ridge": 0.1},
    "cauchy, ridge=0.3": CAUCHY | {"ridge": 0.3},
    "cauchy, ridge=0.03, boost=5": CAUCHY | {"boost": 5.0},
    "cauchy, ridge=0.1, boost=5": CAUCHY | {"ridge": 0.1, "boost": 5.0},
    "cauchy, metric=None": CAUCHY | {"metric": None},
    **{
        f"cauchy, ridge=0.1, {name}={value}": CAUCHY | {"ridge": 0.1, name: value}
        for name, value in (
            ("boost", 1.0),
            ("normalize", "minmax"),
            ("classwise", False),
            ("sigma", 1.0),
            ("min_count", 10),
            ("server_threshold", 0.5),
        )
    },
}
CENTERS = {
    **{f"client_threshold={t}": {"client_threshold": t} for t in (1.0, 0.5, 0.3)},
    "client_threshold=0.5, min_count=1": {"client_threshold": 0.5, "min_count": 1},
    "a center for each row": {"client_threshold": 1e-9, "min_count": 1},
}
RIVAL, BOUND = "averaged logistic regression", "central boosting"
OURS, IMPUTED = "FedPNN", ", imputed"


class Changed(FedPNNClassifier):
    """FedPNN with changed settings of the coordinator."""

    def __init__(self, changes):
        super().__init__(classes=(0, 1), min_count=changes.get("min_count", 5))
        self.changes = changes

    def _make_settings(self, labels):
        return replace(super()._make_settings(labels), **self.changes)


def load_rows(name, positive, seed):
    """Return numeric rows, missing cells NaN, and 0/1 labels."""
    if name in BUNDLED:
        x, target = BUNDLED[name](return_X_y=True)
        y = target == int(positive)
    else:
        table = load_columns(name)
        labels = table.columns["target"]
        y = np.array([str(label).removesuffix(".0") for label in labels]) == positive
        columns = []
        for column in table.without(["target"]).columns.values():
            if column.dtype == np.object_:  # categories by their alphabetical position
                texts = sorted({text for text in column.tolist() if text is not None})
                column = [np.nan if text is None else texts.index(text) for text in column.tolist()]
            columns.append(np.asarray(column, np.float64))
        x = np.column_stack(columns)
    keep, max_rows = np.arange(len(y)), MAX_ROWS if name in DEVELOPMENT else MAX_REPORT_ROWS
    if len(y) > max_rows:
        keep, _ = train_test_split(keep, train_size=max_rows, stratify=y, random_state=seed)
    return x[keep], y[keep].astype(int)


def score(name, positive, method, seed):
    """Return ROC-AUC, balanced accuracy and number of centers of a split."""
    x, y = load_rows(name, positive, seed)
    train, test = train_test_split(np.arange(len(y)), test_size=0.5, stratify=y, random_state=seed)
    owners = np.random.default_rng(seed).permutation(len(train)) % 2
    if method.endswith(IMPUTED):
        medians = SimpleImputer(strategy="median", keep_empty_features=True).fit(x[train])
        x, method = medians.transform(x), method.removesuffix(IMPUTED)
    changes = {OURS: {}} | ALTERNATIVES | CENTERS
    model = Changed(changes[method]) if method in changes else BASELINES[method]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x[train], y[train], parties=owners)
        share = model.predict_proba(x[test])[:, 1]
    recall = balanced_accuracy(y[test], (share > 0.5).astype(int))
    return float(roc_auc_score(y[test], share)), recall, len(getattr(model, "centers_", ()))


def measure(name, methods, seeds, store):
    """Return ROC-AUC, balanced accuracy and number of centers by method and seed.

    All are added to the store.
    """
    found = {}
    if store is not None and store.exists():
        found = dict(map(json.loads, store.read_text().splitlines()))
    keys = [[f"{name}|{method}|{seed}" for seed in seeds] for method in methods]
    for method, row in zip(methods, keys, strict=True):
        for seed, key in zip(seeds, row, strict=True):
            if key not in found:
                found[key] = score(name, SETS[name], method, seed)
                if store is not None:
                    with store.open("a") as file:
                        file.write(json.dumps([key, found[key]]) + "\n")
    return np.array([[found[key] for key in row] for row in keys], np.float64)


def print_choice(sets, seeds, store):
    """Print scores of settings on the development sets, and the choices."""
    names = [*ALTERNATIVES, RIVAL]
    found = np.array([measure(name, names, seeds, store).mean(axis=1) for name in sets])
    scores, balanced = found[:, :, 0], found[:, :, 1].mean(axis=0)
    print(f"{'settings':38} mean ROC-AUC, balanced accuracy; ROC-AUC of {', '.join(sets)}")
    order = [*np.argsort(-scores[:, :-1].mean(axis=0), kind="stable"), len(ALTERNATIVES)]
    for k in order:
        each = " ".join(f"{value:.3f}" for value in scores[:, k])
        print(f"{names[k]:38} {scores[:, k].mean():.4f} {balanced[k]:.3f} {each}")
    chosen = []
    for row, name in enumerate(sets):
        best = int(np.delete(scores[:, :-1], row, axis=0).mean(axis=0).argmax())
        chosen.append(scores[row, best])
        print(f"without {name:24} chosen: {names[best]}, ROC-AUC there {chosen[-1]:.3f}")
    print(f"{'mean of the sets left out':32} {np.mean(chosen):.4f}\n")


def print_rival(sets, seeds, store):
    """Print scores on the report sets, with intervals of the differences."""
    print(f"{'set':34} ROC-AUC and balanced accuracy of {OURS}, of {RIVAL}, ROC-AUC less {OURS}")
    for name in sets:
        ours, rival = measure(name, [OURS, RIVAL], seeds, store)
        means = "  ".join(f"{s[:, 0].mean():.3f} {s[:, 1].mean():.3f}" for s in (ours, rival))
        low, high = interval(rival[:, 0] - ours[:, 0])
        print(f"{name:34} {means} ({low:+.4f} to {high:+.4f})")


def print_imputed(sets, seeds, store):
    """Print scores on tables with gaps, and on the same tables imputed."""
    print("\nROC-AUC with gaps, imputed, difference")
    for name in sets:
        for method in (OURS, RIVAL, BOUND):
            gaps, filled = measure(name, [method, method + IMPUTED], seeds, store)[:, :, 0]
            low, high = interval(filled - gaps)
            means = f"{gaps.mean():.3f} {filled.mean():.3f}"
            print(f"{name:34} {method:28} {means} ({low:+.3f} to {high:+.3f})")


def print_centers(name, seeds, store):
    """Print the score of a set by number of centers."""
    print(f"\nNumber of centers and ROC-AUC, {name}")
    for method in (OURS, *CENTERS, RIVAL, BOUND):
        auc, _, n_centers = measure(name, [method], seeds, store)[0].mean(axis=0)
        print(f"{method:34} {n_centers:5.0f} {auc:.4f}")


def main():
    """Print the choice of settings and the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two sets, two splits")
    parser.add_argument("--store", type=Path, help="file of scores, for resuming")
    options = parser.parse_args()
    development, report = list(DEVELOPMENT), list(REPORT)
    if options.quick:
        development, report = development[-2:], report[-2:]
    print_choice(development, range(2 if options.quick else 3), options.store)
    seeds = range(2 if options.quick else 10)
    print_rival(report, seeds, options.store)
    if not options.quick:
        print_imputed(GAPS, seeds, options.store)
        print_centers("polish-bankruptcy-1year", seeds, options.store)


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        main()
