"""CPU time of nearest fingerprints, compared with FPSim2's function and RDKit's bulk similarity.

The fingerprints are the Morgan fingerprints of the molecules in ``aids_hiv_ged`` and mixtures of
two of them, one million by default (the first argument). Queries are molecules and mixtures that
are not in the table, one at a time, on one thread. Prints medians over queries of our milliseconds
and of each peer's in the same run, the ratios, and the number of queries with equal similarities.
FPSim2 is measured if the environment variable FPSIM2 names a folder of packages that has it, such
as ``site-packages`` of a virtual environment. Its function gets the rows within its bounds of
sizes, sorted by size before. Reads the folder named by the environment variable FEDNEIGHBORS_DATA.
"""

import importlib
import os
import statistics
import sys
import time

import numpy as np
from rdkit import Chem, DataStructs, RDLogger
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

from fedneighbors.datasets._catalog import find_file
from fedneighbors.datasets._graphs import read_graphs
from fedneighbors.methods.fedknn.metrics._fingerprints import TanimotoMetric

REPEATS = 5
N_QUERIES = 40  # half of them molecules
N_BYTES = 256
THRESHOLD = 0.7
BONDS = {
    "1": Chem.BondType.SINGLE,
    "2": Chem.BondType.DOUBLE,
    "3": Chem.BondType.TRIPLE,
    "4": Chem.BondType.AROMATIC,
}
TARGETS = {"FPSim2": 1 / 0.6, "RDKit": 12.0}


def compute_fingerprint(graph, generator):
    """Return the packed fingerprint of a molecule; unknown elements become dummy atoms."""
    molecule = Chem.RWMol()
    table = Chem.GetPeriodicTable()
    symbols = {table.GetElementSymbol(number) for number in range(1, 119)}
    for label in graph.node_labels:
        molecule.AddAtom(Chem.Atom(label if label in symbols else 0))
    for (u, v), label in zip(graph.edges, graph.edge_labels, strict=True):
        molecule.AddBond(u, v, BONDS.get(label, BONDS["1"]))
    molecule.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(molecule)
    return np.packbits(generator.GetFingerprintAsNumPy(molecule), bitorder="little")


def mix(fingerprints, n, rng):
    """Return mixtures of two fingerprints each, mostly of the first."""
    mixed = np.empty((n, N_BYTES), np.uint8)
    for start in range(0, n, 50_000):
        size = min(50_000, n - start)
        first, second = fingerprints[rng.integers(0, len(fingerprints), (2, size))]
        mask = rng.integers(0, 256, (size, N_BYTES), np.uint8)
        mask |= rng.integers(0, 256, (size, N_BYTES), np.uint8) * (rng.random((size, 1)) < 0.7)
        mixed[start : start + size] = (first & mask) | (second & ~mask)
    return mixed


def measure_ms(task, repeats=REPEATS):
    """Return the median CPU milliseconds of a call and its result."""
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        result = task()
        times.append(time.thread_time() - start)
    return 1e3 * statistics.median(times), result


class FPSim2Rows:
    """Rows in the layout of FPSim2: number, words and size, sorted by size."""

    def __init__(self, bits):
        """Load the function and sort the rows."""
        sys.path.append(os.environ["FPSIM2"])
        self.search = importlib.import_module("FPSim2.FPSim2lib").GenericSearch
        rows = self.extend(bits)
        self.rows = rows[np.argsort(rows[:, -1], kind="stable")]
        self.sizes = self.rows[:, -1].astype(np.int64)

    def extend(self, bits):
        """Return the words of fingerprints between their numbers and sizes."""
        words = bits.view(np.uint64)
        sizes = np.bitwise_count(words).sum(axis=1).astype(np.uint64)
        return np.column_stack([np.arange(len(words), dtype=np.uint64), words, sizes])

    def find(self, query, k=0, threshold=0.0):
        """Return the similarities of the k nearest, or above a threshold."""
        row = self.extend(query[None])[0]
        size = int(row[-1])
        start = self.sizes.searchsorted(int(np.ceil(threshold * size)))
        end = self.sizes.searchsorted(size / threshold if threshold else np.inf, side="right")
        return self.search(row, self.rows, threshold, k, 0, int(start), int(end))["coeff"]


class RDKitRows:
    """Bit vectors of RDKit."""

    def __init__(self, bits):
        """Convert the rows."""
        self.rows = [DataStructs.CreateFromBinaryText(row.tobytes()) for row in bits]

    def find(self, query, k=0, threshold=0.0):
        """Return the similarities of the k nearest, or above a threshold."""
        vector = DataStructs.CreateFromBinaryText(query.tobytes())
        similarities = np.array(DataStructs.BulkTanimotoSimilarity(vector, self.rows))
        if not k:
            return np.sort(similarities[similarities >= threshold])[::-1]
        return np.sort(np.partition(similarities, -k)[-k:])[::-1]


def main():
    """Print the table."""
    RDLogger.DisableLog("rdApp.*")
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    rng = np.random.default_rng(0)
    generator = GetMorganGenerator(radius=2, fpSize=8 * N_BYTES)
    graphs = read_graphs(find_file("aids_hiv_ged")).graphs
    molecules = rng.permutation([compute_fingerprint(graph, generator) for graph in graphs])
    held_out, molecules = molecules[: N_QUERIES // 2], molecules[N_QUERIES // 2 :]
    bits = np.concatenate([molecules, mix(molecules, max(0, n - len(molecules)), rng)])[:n]
    queries = np.concatenate([held_out, mix(molecules, N_QUERIES // 2, rng)])
    start = time.process_time()
    index = TanimotoMetric().index(bits, ranks=np.arange(n))
    print(
        f"{n} fingerprints with {index.sizes.mean():.0f} of {8 * N_BYTES} bits; built in CPU time: "
        f"{1e3 * (time.process_time() - start):.0f} ms"
    )
    index.open(queries[0]).next(1)  # compile
    peers = {"RDKit": RDKitRows(bits)}
    if "FPSIM2" in os.environ:
        peers["FPSim2"] = FPSim2Rows(bits)
    for name, options, ours in (
        ("top 10", {"k": 10}, lambda session: session.next(10)),
        ("top 100", {"k": 100}, lambda session: session.next(100)),
        (
            f"threshold {THRESHOLD}",
            {"threshold": THRESHOLD},
            lambda session: session.next(n, cutoff=1 - THRESHOLD),
        ),
    ):
        times, n_equal, n_found = {"ours": [], **{peer: [] for peer in peers}}, 0, []
        for query in queries:
            ms, batch = measure_ms(lambda q=query, find=ours: find(index.open(q)))
            times["ours"].append(ms)
            n_found.append(len(batch.distances))
            is_equal = True
            for peer, rows in peers.items():
                ms, found = measure_ms(
                    lambda q=query, r=rows, o=options: r.find(q, **o), 2 if peer == "RDKit" else 5
                )
                times[peer].append(ms)
                is_equal &= bool(
                    len(found) == n_found[-1]
                    and np.allclose(1 - batch.distances, np.sort(found)[::-1], rtol=0, atol=1e-6)
                )
            n_equal += is_equal
        texts = [f"{name}  ours {statistics.median(times['ours']):.2f} ms"]
        for peer in peers:
            ratios = [x / y for x, y in zip(times[peer], times["ours"], strict=True)]
            ratio = statistics.median(ratios)
            texts.append(
                f"{peer} {statistics.median(times[peer]):.1f} ms, {ratio:.1f}x (worst query "
                f"{min(ratios):.1f}x, target {TARGETS[peer]:.1f}x: "
                f"{'met' if ratio >= TARGETS[peer] else 'MISSED'})"
            )
        print(
            "; ".join(texts)
            + f"; {statistics.median(n_found):.0f} found; equal {n_equal} of {N_QUERIES}"
        )


if __name__ == "__main__":
    main()
