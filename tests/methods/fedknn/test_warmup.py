"""A warm-up compiles all kernels that searches use."""

import subprocess
import sys

SCRIPT = """
import importlib, pkgutil
import numpy as np
import pandas as pd
from numba.core.dispatcher import Dispatcher
import fedneighbors.kernels
from fedneighbors import FederatedNeighbors
from fedneighbors.datasets._graphs import Graph
from fedneighbors.methods.fedknn._warmup import warmup

def list_signatures():
    modules = [
        importlib.import_module(entry.name)
        for entry in pkgutil.walk_packages(fedneighbors.kernels.__path__, "fedneighbors.kernels.")
    ]
    return {
        (module.__name__, name): tuple(map(str, value.signatures))
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Dispatcher)
    }

warmup()
before = list_signatures()
rng = np.random.default_rng(0)
chain = [(u, u + 1) for u in range(6)]
for metric, objects in [
    ("euclidean", rng.normal(size=(60, 3))),
    ("euclidean", rng.normal(size=(6000, 3))),
    ("manhattan", rng.normal(size=(9000, 70))),
    ("cosine", rng.normal(size=(9000, 70))),
    ("inner_product", rng.normal(size=(9000, 70))),
    ("inner_product", rng.normal(size=(2000, 3))),
    ("haversine", rng.uniform(-80, 80, (4000, 2))),
    ("edit", ["".join(rng.choice(list("acgt"), n)) for n in (0, 5, 40, 70, 900, 3000)] * 3),
    ("graph_edit", [Graph(rng.choice(list("CNO"), 7).tolist(), chain[:n]) for n in range(6)]),
    ("tanimoto", np.packbits(rng.random((3000, 640)) < 0.05, axis=1)),
    ("tabular", pd.DataFrame({"age": rng.random(60), "sex": ["f", "m", None] * 20})),
    ("tanimoto", rng.integers(0, 256, (50, 9), np.uint8)),
    ("jaccard", [set(rng.integers(0, 9, 4).tolist()) for _ in range(30)]),
]:
    for algorithm in ("baseline", "dann", "hufu"):
        search = FederatedNeighbors(metric, algorithm)
        search.fit(objects, parties=np.arange(len(objects)) % 2).kneighbors(objects[1:2], 3)
        if algorithm == "baseline":
            search._nearest_batch(objects[:4], 3)
assert any(before.values())
print([name for name, signatures in list_signatures().items() if signatures != before[name]])
"""


def test_searches_after_a_warm_up_compile_nothing():
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )

    assert result.stdout == "[]\n"
