"""Figure 11, and more: the loss of accuracy by compressed memories."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from experiments.bootstrap import (
    ENDS,
    HitCounts,
    accuracy_interval,
    paired_difference,
)
from experiments.harness import Findings, Study, run_each
from experiments.knnper.federations import Scope, make_clients
from experiments.knnper.fixtures import EmbeddedClients, embed_clients, train_clients
from experiments.knnper.prototypes import PrototypeMemory
from experiments.knnper.sweeps import DRAWN, mix_equally
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
"""From the width of a key and the number of classes to an empty memory."""
Outcome = list[tuple[str, str, str, float, HitCounts]]
"""For seen and unseen clients: kind, setting, share of the bytes, and what each gets right."""

FULL = (Scope("mnist", 20_000, 100, 60, (0, 1, 2)), Scope("mnist", 20_000, 10, 60, (0, 1, 2)))
QUICK = (Scope("digits", 500, 6, 8, (0,)),)
ALPHA = 0.3

HIDDEN = (256, 128)
"""Widths of the network, the estimator's own: keys of 128 cells are what is to be compressed."""

NOBODYS = 2000
"""Most rows of no client, from which books are learned that all clients are given."""

SHARES = {"1/3": 1 / 3, "1/9": 1 / 9, "1/16": 1 / 16, "1/32": 1 / 32}


def _exact(width: int, _classes: int) -> Datastore:
    return Datastore(width)


def _codes(codec: ProductCodec) -> Build:
    return lambda width, classes: CodedDatastore(width, n_classes=classes, codec=codec)


def _centers(share: float) -> Build:
    return lambda width, classes: ClassCenters(width, classes, share=share)


def _prototypes(n_projected: int, share: float) -> Build:
    return lambda width, classes: PrototypeMemory(
        width, classes, n_projected=n_projected, share=share
    )


def _kinds(public: Floats) -> Mapping[tuple[str, str], Build]:
    """Return every kind of memory at its preset sizes."""
    kinds: dict[tuple[str, str], Build] = {
        ("8-bit", "a byte a cell"): lambda width, classes: CodedDatastore(
            width, n_classes=classes, codec=EightBitCodec(width)
        )
    }
    sizes: tuple[tuple[int, Bits], ...] = ((32, 4), (16, 4), (8, 4))
    for n, bits in sizes:
        kinds["product, own book", f"{n} numbers of {bits} bits"] = _codes(ProductCodec(n, bits))
    given: tuple[tuple[int, Bits], ...] = ((16, 8), (8, 8), (16, 4))
    for n, bits in given:
        codec = shared_codec(public, n_stretches=n, bits=bits)
        kinds["product, given book", f"{n} numbers of {bits} bits"] = _codes(codec)
    for name, share in SHARES.items():
        kinds["centers", f"{name} of the rows"] = _centers(share)
    for n in (5, 10, 20):
        for name in ("1/3", "1/9"):
            kinds["protonn", f"{n} dimensions, {name} of the rows"] = _prototypes(n, SHARES[name])
    return kinds


def _answered(
    embedded: EmbeddedClients, name: str, memory: Memory | PrototypeMemory, share: float
) -> Floats:
    """Fill a client's memory; return its held-out mixture shares."""
    known, asked = embedded.split(name)
    known = known[: max(1, round(share * len(known)))]
    memory.add(embedded.keys(known), embedded.bank.labels[known])
    votes = memory.votes(embedded.keys(asked), embedded.scores.shape[1], n_neighbors=10)
    shared = np.exp(embedded.scores[asked])
    return shared if votes is None else mix_equally(embedded, name, votes)


def _at(
    embedded: EmbeddedClients, build: Build, share: float = 1.0
) -> dict[str, tuple[float, HitCounts]]:
    """Return byte share and accuracy of seen and unseen clients."""
    right: dict[str, tuple[int, int]] = {}
    n_bytes: dict[str, tuple[int, int]] = {}
    width, n_classes = embedded.bank.embeddings.shape[1], embedded.scores.shape[1]
    for name in embedded.bank.names:
        known, asked = embedded.split(name)
        if len(known) and len(asked):
            memory = build(width, n_classes)
            shares = _answered(embedded, name, memory, share)
            right[name] = embedded.right(name, shares)
            narrow = 4 * width + 1  # keys of 32 bits, and a byte for the label
            own = len(memory) * narrow if build is _exact else memory.nbytes
            n_bytes[name] = (own, len(known) * narrow)
    found = {}
    for who, own_right in embedded.by_role(right).items():
        size = sum(n_bytes[name][0] for name in own_right)
        found[who] = size / sum(n_bytes[name][1] for name in own_right), own_right
    return found


def _measured(scope: Scope, seed: int) -> Outcome:
    """Return size and accuracy of each kind of memory with one network."""
    clients = make_clients("label skew", scope, seed, alpha=ALPHA)
    wide = make_clients(
        "label skew",
        replace(scope, n_rows=scope.n_rows + min(NOBODYS, scope.n_rows)),
        seed,
        alpha=ALPHA,
    )
    model = train_clients(clients, scope.n_rounds, seed, hidden=HIDDEN)
    embedded = embed_clients(model, clients)
    public = model.embed(wide.x[scope.n_rows :])[0]
    rows: Outcome = []

    def keep(kind: str, setting: str, found: dict[str, tuple[float, HitCounts]]) -> None:
        rows.extend((who, kind, setting, *cells) for who, cells in found.items())

    keep("exact", "all rows", _at(embedded, _exact))
    for name, share in SHARES.items():
        keep("exact", f"{name} of the rows", _at(embedded, _exact, share))
    for (kind, setting), build in _kinds(public).items():
        keep(kind, setting, _at(embedded, build))
    return rows


def _label(scope: Scope, seed: int) -> str:
    return f"{scope.data}, {scope.n_clients} clients, seed {seed}"


def _work(*, quick: bool, seed: int, n_jobs: int, progress: Progress) -> Findings:
    scopes = QUICK if quick else FULL
    jobs = [(scope, seed + s) for scope in scopes for s in scope.seeds]
    each = run_each(_measured, jobs, n_jobs=n_jobs, progress=progress, label=_label)
    tables = []
    for scope in scopes:
        own = [found for job, found in zip(jobs, each, strict=True) if job[0] == scope]
        tables += [_table(scope, who, own) for who in ("seen", "unseen")]
    return Findings(
        parameters={"data": scopes[0].data, "alpha": ALPHA, "seeds": len(scopes[0].seeds)},
        tables=tuple(tables),
        figures=tuple(_figure(table) for table in tables),
        notes=(
            "Network and memory weigh alike, so that the memory alone changes. Sizes are of all "
            "that a memory needs, labels, counts and own books with it, over keys in 32 bits a "
            "cell and a byte for a label. Given books are learned from rows of no client, are the "
            "same for all and part of no memory.",
            "The paper, CIFAR-10: ProtoNN at a quarter of the size costs .7 points; CIFAR-100: at "
            "four fifths about 3.",
        ),
    )


def _table(scope: Scope, who: str, each: list[Outcome]) -> ResultTable:
    """Return means over seeds and gains over exact memories."""
    cells: dict[tuple[str, str], list[tuple[float, HitCounts, HitCounts]]] = {}
    for found in each:
        own = [row for row in found if row[0] == who]
        for _, kind, setting, size, right in own:
            cells.setdefault((kind, setting), []).append((size, right, own[0][4]))
    rows: list[tuple[Scalar, ...]] = []
    for (kind, setting), some in cells.items():
        size = float(np.mean([size for size, _, _ in some]))
        mean, low, high = accuracy_interval([right for _, right, _ in some])
        more = paired_difference([(right, exact) for _, right, exact in some])
        points = (100 * value for value in more)
        rows.append((kind, setting, size, 1 / size, mean, low, high, *points))
    return ResultTable(
        name=f"{scope.n_clients}-clients-{who}",
        title=f"{scope.n_clients} clients of {scope.n_rows} rows: those {who} in training",
        columns=(
            "memory", "setting", "relative size", "times smaller", "accuracy", *ENDS,
            "points above exact", "from", "to",
        ),
        rows=tuple(rows),
        caption=DRAWN,
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
        caption="Figure 11 of the paper for ProtoNN; the others are ours.",
    )


COMPRESSION = Study(
    name="knnper.compression",
    title="Memories of fewer bytes",
    description="Figure 11 of the paper, and four other ways to compress.",
    work=_work,
)
"""The experiment."""
