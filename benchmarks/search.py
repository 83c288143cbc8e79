"""CPU seconds of FlyNN's cross-validation without refits, compared with scikit-learn's.

Searches with the defaults and 10 folds on 1,000 rows of 50 columns. Prints the seconds of the
search, and the ratio to scikit-learn's ``cross_val_score`` for a sample of the same settings in the
same run.
"""

import statistics
import time

import numpy as np
from sklearn.datasets import make_classification
from sklearn.model_selection import cross_val_score

from fedneighbors import FlyNNClassifier, FlyNNSearchCV
from fedneighbors.methods.flynn._scoring import Candidate

TARGET_S = 5.0
REPEATS = 3
N_PEER_SETTINGS = 8


def measure_seconds(task):
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
    FlyNNSearchCV(refit=False).fit(x[:200], y[:200])  # compile
    runs = [
        measure_seconds(lambda: FlyNNSearchCV(10, refit=False).fit(x, y)) for _ in range(REPEATS)
    ]
    search = runs[0][1]
    seconds = statistics.median(run[0] for run in runs)
    settings = search.cv_results_["params"]
    sample = np.random.default_rng(0).choice(len(settings), N_PEER_SETTINGS, replace=False)
    peer_seconds, n_equal = 0.0, 0
    for index in sample:
        params = {**settings[index], "standardize": False}
        rescored = FlyNNSearchCV(
            10,
            candidates=[_make_candidate(params)],
            n_finalists=None,
            n_active=[params["n_active"]],
            load=[],
            decay=[params["decay"]],
            class_normalized=[params["class_normalized"]],
            refit=False,
        ).fit(x, y)
        peer_s, scores = measure_seconds(
            lambda p=params: cross_val_score(FlyNNClassifier(**p), x, y, cv=10)
        )
        peer_seconds += peer_s
        n_equal += bool(
            (scores == [rescored.cv_results_[f"split{f}_test_score"][0] for f in range(10)]).all()
        )
    per_setting = seconds / len(settings)
    print(f"settings of the last stage {len(settings)}, folds 10, rows 1000 x 50")
    print(
        f"search: {seconds:.2f} CPU s, target <= {TARGET_S}: "
        + ("met" if seconds <= TARGET_S else "MISSED")
    )
    print(f"scores equal to cross_val_score, digit for digit: {n_equal} of {N_PEER_SETTINGS}")
    print(
        f"one setting: ours {1e3 * per_setting:.2f} ms, "
        f"cross_val_score {1e3 * peer_seconds / N_PEER_SETTINGS:.0f} ms"
    )
    print(f"ratio {peer_seconds / N_PEER_SETTINGS / per_setting:.0f}x")


def _make_candidate(params):
    return Candidate(params["standardize"], params["expand"], params["n_units"], params["n_inputs"])


if __name__ == "__main__":
    main()
