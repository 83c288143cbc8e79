"""CPU seconds of FlyNN's free cross-validation against scikit-learn's, on the same settings.

Prints the seconds of a search with 60 wirings and 10 folds on 1,000 x 50 rows, and the ratio to
scikit-learn's ``cross_val_score`` of a sample of the same settings, in the same run.
"""

import statistics
import time

import numpy as np
from sklearn.datasets import make_classification
from sklearn.model_selection import cross_val_score

from fedneighbors import FlyNNClassifier, FlyNNSearchCV

TARGET_S = 5.0
REPEATS = 3
SAMPLE = 8


def cpu_seconds(task):
    """Return the CPU seconds of a call and its result."""
    start = time.process_time()
    result = task()
    return time.process_time() - start, result


def main():
    """Print the table."""
    x, y = make_classification(
        1000, 50, n_informative=50, n_redundant=0, n_classes=5, n_clusters_per_class=3,
        class_sep=1.2, flip_y=0.01, random_state=0,
    )  # fmt: skip
    FlyNNSearchCV(n_candidates=3, refit=False).fit(x[:200], y[:200])  # compile
    runs = [cpu_seconds(lambda: FlyNNSearchCV(refit=False).fit(x, y)) for _ in range(REPEATS)]
    search = runs[0][1]
    seconds = statistics.median(run[0] for run in runs)
    settings = search.cv_results_["params"]
    chosen = np.random.default_rng(0).choice(len(settings), SAMPLE, replace=False)
    theirs, equal = 0.0, 0
    for k in chosen:
        plain = {**settings[k], "standardize": False}
        again = FlyNNSearchCV(
            candidates=[_wiring(plain)],
            n_active=[plain["n_active"]],
            load=[],
            decay=[plain["decay"]],
            class_normalized=[plain["class_normalized"]],
            refit=False,
        ).fit(x, y)
        spent, scores = cpu_seconds(
            lambda p=plain: cross_val_score(FlyNNClassifier(**p), x, y, cv=10)
        )
        theirs += spent
        equal += bool(
            (scores == [again.cv_results_[f"split{f}_test_score"][0] for f in range(10)]).all()
        )
    per_setting = seconds / len(settings)
    print(
        f"wirings {search.n_candidates}, settings scored {len(settings)}, folds 10, rows 1000 x 50"
    )
    print(
        f"search: {seconds:.2f} CPU s, target <= {TARGET_S}: "
        + ("met" if seconds <= TARGET_S else "MISSED")
    )
    print(f"scores equal to cross_val_score, digit for digit: {equal} of {SAMPLE}")
    print(
        f"one setting: {1e3 * per_setting:.2f} ms here, "
        f"{1e3 * theirs / SAMPLE:.0f} ms by cross_val_score"
    )
    print(f"ratio {theirs / SAMPLE / per_setting:.0f}x")


def _wiring(params):
    from fedneighbors.methods.flynn._candidates import Candidate

    return Candidate(params["standardize"], params["expand"], params["n_units"], params["n_inputs"])


if __name__ == "__main__":
    main()
