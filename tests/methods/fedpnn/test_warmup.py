"""After a warm-up no clustering or network waits for a compiler."""

import subprocess
import sys

SCRIPT = """
import importlib, pkgutil
import numpy as np
from numba.core.dispatcher import Dispatcher
import fedneighbors.kernels
from fedneighbors import EvolvingClustering, ProbabilisticNeuralNetwork
from fedneighbors.methods.fedpnn.algorithm import merge_centers, warmup

def compiled():
    modules = [
        importlib.import_module(entry.name)
        for entry in pkgutil.walk_packages(fedneighbors.kernels.__path__, "fedneighbors.kernels.")
    ]
    return {
        (module.__name__, name): tuple(map(str, thing.signatures))
        for module in modules
        for name, thing in vars(module).items()
        if isinstance(thing, Dispatcher)
    }

warmup()
before = compiled()
rng = np.random.default_rng(0)
y = rng.integers(0, 3, 3000)
for x in (rng.random((3000, 5)), rng.random((3000, 5)).astype("f4"), np.asfortranarray(y[:, None])):
    x.flags.writeable = False
    for rule in ("modified", "original"):
        for threshold in (1, 0.1):
            model = EvolvingClustering(threshold, 2, rule, max_centres=50, n_jobs=2).fit(x, y)
            model.partial_fit(x, y).predict(x)
    merge_centers(model.centers_, model.counts_, threshold=1)
    for activation in ("gaussian", "logistic", "cauchy"):
        for sigma in (1, "loo"):
            ProbabilisticNeuralNetwork(sigma, activation).fit(x[:99], y[:99]).predict(x)
assert any(before.values())
print([name for name, found in compiled().items() if found != before[name]])
"""


def test_clusters_and_networks_of_every_kind_compile_nothing_more():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
