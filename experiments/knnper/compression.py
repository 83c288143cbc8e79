"""Accuracy of compressed memories (Figure 11 of the paper, and further kinds)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bootstrap import (
    ENDS,
    HitCounts,
    accuracy_interval,
    paired_difference,
)
from experiments.harness import Findings, Journal, Study, run_each
from experiments.knnper.federations import Scope, make_clients
from experiments.knnper.fixtures import EmbeddedClients, embed_clients, train_network
from experiments.knnper.memory import first_rows
from experiments.knnper.prototypes import PrototypeMemory
from experiments.knnper.sweeps import INTERVALS, describe, mix_equally
from fedneighbors._typing import Floats, Progress
from fedneighbors.methods.knnper.memory._codes import (
    Bits,
    EightBitCodec,
    ProductCodec,
    shared_codec,
)
from fedneighbors.methods.knnper.memory._compressed import ClassCenters, CodedDatastore, Memory
from fedneighbors.methods.knnper.memory._datastore import Datastore
from fedneighbors.records import Figure, ResultTable, Scalar

Build = Callable[[int, int], Memory | PrototypeMemory]
"""Returns an empty memory, given the width of a key and the number of classes."""
Outcome = list[tuple[str, str, str, float, HitCounts]]
"""Rows of (seen or unseen, kind, setting, relative size in bytes, hits)."""

SEEDS = (0, 1, 2, 3, 4)
FULL = (Scope("mnist", 20_000, 100, 200, SEEDS), Scope("mnist", 20_000, 10, 200, SEEDS))
QUICK = (Scope("digits", 500, 6, 8, (0,)),)
ALPHA = 0.3

HIDDEN = (256, 128)
"""Layer widths: the estimator's defaults, so that keys have 128 values."""

PUBLIC_ROWS = 2000
"""Maximum number of rows outside all clients, for training shared codebooks."""

FRACTIONS = {"1/3": 1 / 3, "1/9": 1 / 9, "1/16": 1 / 16, "1/32": 1 / 32}


def _exact(width: int, _classes: int) -> Datastore:
    return Datastore(width)


def _codes(codec: ProductCodec) -> Build:
    return lambda width, classes: CodedDatastore(width, n_classes=classes, codec=codec)


def _centers(centers_per_row: float) -> Build:
    return lambda width, classes: ClassCenters(width, classes, centers_per_row=centers_per_row)


def _prototypes(n_projected: int, prototypes_per_row: float) -> Build:
    return lambda width, classes: PrototypeMemory(
        width, classes, n_projected=n_projected, prototypes_per_row=prototypes_per_row
    )


def _list_memories(public: Floats) -> Mapping[tuple[str, str], Build]:
    """Return all kinds of memory at their sizes."""
    kinds: dict[tuple[str, str], Build] = {
        ("8-bit", "a byte a cell"): lambda width, classes: CodedDatastore(
            width, n_classes=classes, codec=EightBitCodec(width)
        )
    }
    sizes: tuple[tuple[int, Bits], ...] = ((32, 4), (16, 4), (8, 4))
    for n, bits in sizes:
        kinds["product, own book", f"{n} numbers of {bits} bits"] = _codes(ProductCodec(n, bits))
    shared: tuple[tuple[int, Bits], ...] = ((16, 8), (8, 8), (16, 4))
    for n, bits in shared:
        codec = shared_codec(public, n_stretches=n, bits=bits)
        kinds["product, given book", f"{n} numbers of {bits} bits"] = _codes(codec)
    for name, fraction in FRACTIONS.items():
        kinds["centers", f"{name} of the rows"] = _centers(fraction)
    for n in (5, 10, 20):
        for name in ("1/3", "1/9"):
            kinds["protonn", f"{n} dimensions, {name} of the rows"] = _prototypes(
                n, FRACTIONS[name]
            )
    return kinds


def _predict(
    embedded: EmbeddedClients, name: str, memory: Memory | PrototypeMemory, fraction: float
) -> Floats:
    """Fill a client's memory; return class probabilities of its test rows."""
    train, test = embedded.split(name)
    train = first_rows(train, fraction)
    memory.add(embedded.keys(train), embedded.bank.labels[train])
    votes = memory.votes(embedded.keys(test), embedded.scores.shape[1], n_neighbors=10)
    shared = np.exp(embedded.scores[test])
    return shared if votes is None else mix_equally(embedded, name, votes)


def _score_memories(
    embedded: EmbeddedClients, build: Build, fraction: float = 1.0
) -> dict[str, tuple[float, HitCounts]]:
    """Return relative size and hits of seen and unseen clients."""
    hits: dict[str, tuple[int, int]] = {}
    n_bytes: dict[str, tuple[int, int]] = {}
    width, n_classes = embedded.bank.embeddings.shape[1], embedded.scores.shape[1]
    for name in embedded.bank.names:
        train, test = embedded.split(name)
        if len(train) and len(test):
            memory = build(width, n_classes)
            predicted = _predict(embedded, name, memory, fraction)
            hits[name] = embedded.count_hits(name, predicted)
            row_bytes = 4 * width + 1  # float32 keys and one byte for the label
            size_in_bytes = len(memory) * row_bytes if build is _exact else memory.nbytes
            n_bytes[name] = (size_in_bytes, len(train) * row_bytes)
    result = {}
    for group, group_hits in embedded.by_group(hits).items():
        size = sum(n_bytes[name][0] for name in group_hits)
        result[group] = size / sum(n_bytes[name][1] for name in group_hits), group_hits
    return result


def _recall(scope: Scope, seed: int, journal: Path | None) -> Outcome:
    """Return the stored or measured outcome of every kind of memory."""
    return Journal(journal).get_or_measure(
        (scope.data, scope.n_rows, scope.n_clients, scope.n_rounds, seed),
        measure=lambda: _measure(scope, seed),
        encode=list,
        decode=_decode,
    )


def _decode(stored: list[Any]) -> Outcome:
    return [
        (group, kind, setting, size, {name: (n[0], n[1]) for name, n in hits.items()})
        for group, kind, setting, size, hits in stored
    ]


def _measure(scope: Scope, seed: int) -> Outcome:
    """Return the outcome of every kind of memory under one network."""
    clients = make_clients("label skew", scope, seed, alpha=ALPHA)
    extended = make_clients(
        "label skew",
        replace(scope, n_rows=scope.n_rows + min(PUBLIC_ROWS, scope.n_rows)),
        seed,
        alpha=ALPHA,
    )
    model = train_network(clients, scope.n_rounds, seed, hidden=HIDDEN)
    embedded = embed_clients(model, clients)
    public = model.embed(extended.x[scope.n_rows :])[0]
    rows: Outcome = []

    def append(kind: str, setting: str, results: dict[str, tuple[float, HitCounts]]) -> None:
        rows.extend((group, kind, setting, *cells) for group, cells in results.items())

    append("exact", "all rows", _score_memories(embedded, _exact))
    for name, fraction in FRACTIONS.items():
        append("exact", f"{name} of the rows", _score_memories(embedded, _exact, fraction))
    for (kind, setting), build in _list_memories(public).items():
        append(kind, setting, _score_memories(embedded, build))
    return rows


def _label(scope: Scope, seed: int, _journal: Path | None) -> str:
    return f"{scope.data}, {scope.n_clients} clients, seed {seed}"


def _work(
    *,
    quick: bool,
    seed: int,
    n_jobs: int,
    progress: Progress,
    journal: Path | None,
    n_seeds: int | None = None,
) -> Findings:
    Journal(journal).repair()
    scopes: tuple[Scope, ...] = QUICK if quick else FULL
    if n_seeds is not None:
        scopes = tuple(replace(scope, seeds=tuple(range(n_seeds))) for scope in scopes)
    jobs = [(scope, seed + s, journal) for s in scopes[0].seeds for scope in scopes]
    each = run_each(_recall, jobs, n_jobs=n_jobs, progress=progress, label=_label)
    tables = []
    for scope in scopes:
        outcomes = [outcome for job, outcome in zip(jobs, each, strict=True) if job[0] == scope]
        tables += [_table(scope, group, outcomes) for group in ("seen", "unseen")]
    return Findings(
        parameters=describe(scopes[0]) | {"clients": [s.n_clients for s in scopes], "alpha": ALPHA},
        tables=tuple(tables),
        figures=tuple(_figure(table) for table in tables),
        notes=(
            "Network and memory have equal weights. Relative size: all bytes of a memory (codes, "
            "labels, counts, and its own codebook) over those of float32 keys and one byte per "
            "label. Given codebooks are trained on rows that belong to no client, shared by all "
            "clients, and not counted.",
            "In the paper ProtoNN at a quarter of the size costs .7 points on CIFAR-10, and at "
            "four fifths of the size about 3 points on CIFAR-100.",
        ),
    )


def _table(scope: Scope, group: str, each: list[Outcome]) -> ResultTable:
    """Return means over seeds and gains over exact memories."""
    cells: dict[tuple[str, str], list[tuple[float, HitCounts, HitCounts]]] = {}
    for outcome in each:
        outcomes = [row for row in outcome if row[0] == group]
        for _, kind, setting, size, hits in outcomes:
            cells.setdefault((kind, setting), []).append((size, hits, outcomes[0][4]))
    rows: list[tuple[Scalar, ...]] = []
    for (kind, setting), entries in cells.items():
        size = float(np.mean([size for size, _, _ in entries]))
        mean, low, high = accuracy_interval([hits for _, hits, _ in entries])
        gain = paired_difference([(hits, exact) for _, hits, exact in entries])
        points = (100 * value for value in gain)
        rows.append((kind, setting, size, 1 / size, mean, low, high, *points))
    return ResultTable(
        name=f"{scope.n_clients}-clients-{group}",
        title=f"{scope.n_clients} clients, {scope.n_rows} rows: clients {group} in training",
        columns=(
            "memory", "setting", "relative size", "times smaller", "accuracy", *ENDS,
            "points above exact", "from", "to",
        ),
        rows=tuple(rows),
        caption=INTERVALS,
    )  # fmt: skip


def _figure(table: ResultTable) -> Figure:
    return Figure(
        name=table.name,
        kind="scatter",
        title=table.title,
        table=table.name,
        x="relative size",
        y="accuracy",
        hue="memory",
        log_x=True,
        caption="ProtoNN: Figure 11 of the paper. The other memories are ours.",
    )


COMPRESSION = Study(
    name="knnper.compression",
    title="Compressed memories",
    description="Figure 11 of the paper, and four other kinds of compression.",
    work=_work,
    keeps_journal=True,
    options=("n_seeds",),
)
"""The experiment."""
