"""Valid files and requests of every kind, and the readers that a mutated one must not surprise."""

import bz2
import gzip
import lzma
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from rdkit import RDLogger

from fedneighbors import (
    FederatedNeighbors,
    FederatedNeighborsClassifier,
    FedPNNClassifier,
    FlyNNClassifier,
    FlyNNSearchCV,
    KNNPerClassifier,
    KNNPerRegressor,
    baselines,
)
from fedneighbors.datasets import Schema, _catalog, read_table
from fedneighbors.datasets._files import read_lines
from fedneighbors.datasets._graphs import read_graphs
from fedneighbors.datasets._molecules import read_molecules
from fedneighbors.datasets._reading import read_rows
from fedneighbors.errors import DataError, LedgerError, ModelFileError, RecordError, WireError
from fedneighbors.federation import _inprocess, _roles
from fedneighbors.federation._messages import decode
from fedneighbors.federation._roles import serve
from fedneighbors.methods.fedpnn.synthesis import TabularSynthesizer
from fedneighbors.methods.flynn._scoring import Candidate
from fedneighbors.methods.knnper._client import KNNPerParty
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.methods.knnper._task import CLASSIFICATION, REGRESSION
from fedneighbors.methods.knnper.protocol import coordinate
from fedneighbors.neural._blueprint import perceptron
from fedneighbors.partition import Manifest, describe
from fedneighbors.privacy import Privacy, PureDP
from fedneighbors.privacy.ledger._chain import extend_chain
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.records import Figure, ResultTable, RunRecord, read_record, write_record
from fedneighbors.runs._audited_node import CONFIGURATION, AuditedNode
from fedneighbors.secure_sum import Identity, Roster
from fedneighbors.service._attestation import EvidenceRefused
from fedneighbors.service._dialling import check_evidence
from tests.fuzz.mutation import WORDS, mutate, reseal
from tests.fuzz.received import received_frames
from tests.service.evidence import AT, DATA, Amd, Intel

RNG = np.random.default_rng(0)
X = RNG.normal(size=(36, 3))
Y = np.arange(36) % 3
OWNER = np.array(["north", "south"])[np.arange(36) // 18]
QUICK = {"hidden": (4,), "n_rounds": 1, "trainer": "reuse"}


@dataclass(frozen=True)
class Target:
    """A reader, valid inputs, and the only error that a mutated input may raise.

    ``change`` returns an altered input; ``read`` takes it and a scratch path.
    """

    name: str
    inputs: list
    read: Callable
    error: type
    change: Callable


def targets(folder, names=None, *, brief=False):
    """Return the targets with these names; all for None.

    With ``brief``, models and requests are those of few methods.
    """
    made = {"models": models, "tables": tables, "schemas": schemas, "ledgers": ledgers}
    made |= {"entries": entries, "requests": requests, "objects": objects, "arrays": arrays}
    made |= {"texts": texts, "keys": keys, "records": records, "evidence": evidence}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [made[name](Path(folder), brief) for name in names or made]


# Model files: the first bytes are the magic, then comes a checksum, which is made valid again.


def models(folder, brief):
    """Return the target of the files of all fitted models."""
    fitted = [
        FlyNNClassifier(n_units=16, n_active=2).fit(X, Y),
        FedPNNClassifier(min_count=2).fit(X, Y),
        FedPNNClassifier(privacy=Privacy(1, classes=(0, 1, 2), bounds=(-4, 4))).fit(X, Y),
    ]
    if not brief:
        fitted += [
            *(
                KNNPerClassifier(memory=kind, **QUICK).fit(X, Y, parties=OWNER)
                for kind in ("exact", "8-bit", "product", "centers")
            ),
            KNNPerClassifier(combine="pool", strategy="drift", capacity=12, **QUICK).fit(X, Y),
            KNNPerRegressor(**QUICK).fit(X, X[:, 0]),
            FederatedNeighborsClassifier().fit(X, Y, parties=OWNER),
            baselines.FederatedDiscriminantClassifier().fit(X, Y, parties=OWNER),
            baselines.FedAvgClassifier(hidden=(4,), n_rounds=1).fit(X, Y, parties=OWNER),
            TabularSynthesizer(generator=(4,), critic=(4,), epochs=1, embedding=4).fit(X, Y),
        ]
    inputs = []
    for model in fitted:
        model.save(folder / "valid")
        raw = (folder / "valid").read_bytes()
        load = type(model).load
        inputs.append((raw, load))

    def change(item, rng):
        raw, load = item
        others = [other for other, _ in inputs]
        changed = mutate(raw, rng, others)
        return (
            reseal(changed, 8 if raw[:4] != b"FNKC" else 5) if rng.random() < 0.95 else changed
        ), load

    def read(item, path):
        path.write_bytes(item[0])
        item[1](path)

    return Target("models", inputs, read, ModelFileError, change)


SCHEMA = """label = "y"
classes = [0, 1]
[columns.a]
kind = "number"
low = -1.5
high = 4
missing = 0
[columns.b]
kind = "category"
categories = ["x", "z"]
"""
CSV = b"a,b,y\n1.5,x,0\n-2,z,1\n?,x,0\n3e2,,1\n"
ARFF = b"""@relation r
@attribute a numeric
@attribute b {x,z}
@attribute y {0,1}
@data
1,x,0
2,z,1
"""
JSONL = b'{"a": 1, "b": "x", "y": 0}\n{"a": null, "b": "z", "y": 1}\n'


def tables(folder, _brief):
    """Return the target of tables, with and without a schema."""
    import pyarrow
    from pyarrow import parquet

    content = pyarrow.table({"a": [1.5, None, 3], "b": ["x", "z", "x"], "y": [0, 1, 0]})
    parquet.write_table(content, folder / "valid.parquet")
    stored = (folder / "valid.parquet").read_bytes()
    schema = Schema.from_toml(SCHEMA)
    free = lambda path: read_table(path, label="y")  # noqa: E731 - one line each
    declared = lambda path: read_rows(path, schema)  # noqa: E731
    contents = {".csv": CSV, ".arff": ARFF, ".parquet": stored, ".csv.gz": gzip.compress(CSV)}
    inputs = [(raw, ending, read) for ending, raw in contents.items() for read in (free, declared)]
    inputs.append((JSONL, ".jsonl", declared))

    def change(item, rng):
        raw, ending, read = item
        if ending == ".csv.gz" and rng.random() < 0.7:
            return gzip.compress(mutate(CSV, rng, [CSV, ARFF]), 1), ending, read
        return mutate(raw, rng, [CSV, ARFF, JSONL, stored]), ending, read

    def read(item, path):
        named = path.with_name(f"table{item[1]}")
        named.write_bytes(item[0])
        item[2](named)

    return Target("tables", inputs, read, DataError, change)


def schemas(_folder, _brief):
    """Return the target of schema files."""
    raw = SCHEMA.encode()

    def read(item, path):
        path.write_bytes(item)
        Schema.load(path)

    return Target(
        "schemas", [raw], read, DataError, lambda item, rng: mutate(item, rng, [CSV, raw])
    )


GRAPHS = b"t # a\nv 0 C\nv 1 O\ne 0 1 2\nt # b hit\nv 0 N\nt # -1\n"
SMILES = b"CC(=O)Oc1ccccc1 a\n[Na+].[Cl-]\nC1CC1[2H] b\n\nc1cc[nH]c1 d e\n"
PACK = {
    ".gz": gzip.compress,
    ".xz": partial(lzma.compress, preset=0),  # others take more memory than a campaign allows
    ".bz2": bz2.compress,
}


def objects(_folder, _brief):
    """Return the target of graphs, molecules and lines of text."""
    RDLogger.DisableLog("rdApp.*")
    inputs = [(GRAPHS, ".graph", read_graphs), (GRAPHS, ".graph.gz", read_graphs)]
    inputs += [(SMILES, ".smi", read_molecules), (SMILES, ".txt", read_lines)]
    inputs += [(SMILES, ".txt" + ending, read_lines) for ending in PACK]

    def change(item, rng):
        raw, ending, read = item
        pack = PACK.get(ending[ending.rindex(".") :])
        if pack is None:
            return mutate(raw, rng, [GRAPHS, SMILES]), ending, read
        if rng.random() < 0.7:
            return pack(mutate(raw, rng, [GRAPHS, SMILES])), ending, read
        return mutate(pack(raw), rng, [GRAPHS]), ending, read

    def read(item, path):
        named = path.with_name(f"objects{item[1]}")
        named.write_bytes(item[0])
        item[2](named)

    return Target("objects", inputs, read, DataError, change)


def arrays(folder, _brief):
    """Return the target of files of numpy arrays."""
    images, inputs = folder / "images", []
    images.mkdir(exist_ok=True)
    x, y = np.arange(4 * 784, dtype=np.uint8).reshape(4, 784), np.arange(4)
    names = np.array(["a", "b", "a", "b"])
    drawn = {"x28": x.reshape(4, 28, 28), "drawer": y, "alphabet": names, "character": names}
    sets = {"mnist": {"x_train": x, "x_test": x, "y_train": y, "y_test": y}, "omniglot": drawn}
    for name, content in sets.items():
        for save in (np.savez, np.savez_compressed):
            save(folder / "valid.npz", **content)
            inputs.append((name, (folder / "valid.npz").read_bytes()))
    others = [raw for _, raw in inputs]

    def read(item, _path):
        name, raw = item
        (folder / _catalog._IMAGE_FILES[name]).write_bytes(raw)
        _catalog._scan_images(name, folder)
        _catalog._load_images(name, folder)

    def change(item, rng):
        return item[0], mutate(item[1], rng, others)

    return Target("arrays", inputs, read, DataError, change)


NODE = b"""method = "flynn"
party-name = "north"
epsilon = "1/2"
n-picks = 0
schema = "schema.toml"
"""


def texts(folder, _brief):
    """Return the target of node configurations and manifests of partitions."""
    node, scratch = folder / "node", folder / "scratch"
    for each in (node, scratch):
        each.mkdir(exist_ok=True)
    (node / "schema.toml").write_text(SCHEMA, "utf-8")
    manifest = describe(OWNER, Y, kind="iid", seed=1, parameters={"alpha": 0.5})

    def read_node(raw, _path):
        (node / CONFIGURATION).write_bytes(raw)
        AuditedNode(node, scratch)

    def read_manifest(raw, _path):
        Manifest.from_json(raw.decode("utf-8", "replace"))

    inputs = [(NODE, read_node), (manifest.to_json().encode(), read_manifest)]
    return Target(
        "texts",
        inputs,
        lambda item, path: item[1](item[0], path),
        DataError,
        lambda item, rng: (mutate(item[0], rng, [NODE, CSV]), item[1]),
    )


def keys(folder, _brief):
    """Return the target of private keys and rosters."""
    identity = Identity.new()
    identity.write(folder / "key.pem")
    roster = Roster({"north": identity.public, "south": Identity.new().public})
    pem = (folder / "key.pem").read_bytes()
    inputs = [(pem, Identity.read), (roster.to_json().encode(), Roster.read)]

    def read(item, path):
        path.write_bytes(item[0])
        path.chmod(0o600)
        item[1](path)

    return Target(
        "keys", inputs, read, ValueError, lambda item, rng: (mutate(item[0], rng, [pem]), item[1])
    )


def records(folder, _brief):
    """Return the target of run records."""
    table = ResultTable("scores", "Scores", ("k", "score"), ((1, 0.5), (2, float("nan"))))
    figure = Figure("line", "line", "Scores", "scores", x="k", y="score")
    record = RunRecord("run", {"k": [1, 2]}, tables=(table,), figures=(figure,), notes=("a",))
    write_record(record, folder / "valid.jsonl")
    raw = (folder / "valid.jsonl").read_bytes()

    def read(item, path):
        path.write_bytes(item)
        read_record(path)

    return Target(
        "records", [raw], read, RecordError, lambda item, rng: mutate(item, rng, [raw, JSONL])
    )


def evidence(folder, _brief):
    """Return the target of evidence of confidential virtual machines."""
    amd, intel = Amd(folder / "amd"), Intel(folder / "intel")
    inputs = [(amd, amd.evidence()), (intel, intel.evidence()), (intel, intel.evidence(version=5))]
    others = [part for _, one in inputs for part in (one.report, *one.certificates)]

    def read(item, _path):
        made, one = item
        check_evidence(one, made.rules(), made.folder, report_data=DATA, at=AT)

    def change(item, rng):
        made, one = item
        if one.certificates and rng.random() < 0.5:
            chain = list(one.certificates)
            place = rng.randrange(len(chain))
            chain[place] = mutate(chain[place], rng, others)
            return made, replace(one, certificates=tuple(chain))
        return made, replace(one, report=mutate(one.report, rng, others))

    return Target("evidence", inputs, read, EvidenceRefused, change)


def _filled_ledger(path):
    with Ledger(path, "north") as ledger:
        ledger.set_budget("visits", PureDP(1))
        for query in ("q1", "q2"):
            terms = {"dataset": "visits", "user": "study", "cost": PureDP("1/8")}
            ledger.release(query, draw=lambda: b"noised", **terms)


def _open_ledger(path):
    with Ledger(path, timeout_s=0) as ledger:
        ledger.entries()
        ledger.budgets()
        ledger.head()


def ledgers(folder, _brief):
    """Return the target of the bytes of ledgers."""
    _filled_ledger(folder / "valid.ledger")
    raw = (folder / "valid.ledger").read_bytes()

    def read(item, path):
        _forget(path)
        path.write_bytes(item)
        path.chmod(0o600)
        _open_ledger(path)

    return Target("ledgers", [raw], read, LedgerError, lambda item, rng: mutate(item, rng, [raw]))


def entries(folder, _brief):
    """Return the target of ledgers with altered values and a valid chain of digests."""
    _filled_ledger(folder / "rows.ledger")
    raw = (folder / "rows.ledger").read_bytes()

    def change(_, rng):
        table = rng.choice(("entry", "entry", "charge", "answer", "about"))
        return (
            table,
            rng.randrange(12),
            rng.randrange(6),
            rng.choice(
                (*WORDS, rng.randbytes(3), rng.randrange(-(2**63), 2**63), rng.random(), None)
            ),
        )

    def read(item, path):
        table, column, row, value = item
        _forget(path)
        path.write_bytes(raw)
        path.chmod(0o600)
        with closing(sqlite3.connect(path)) as connection:
            _alter(connection, table, column, row, value)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        _open_ledger(path)

    return Target("entries", [None], read, LedgerError, change)


def _alter(connection, table, column, row, value):
    """Set one cell, and compute the digests of all entries again."""
    triggers = connection.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"
    ).fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    names = [each[1] for each in connection.execute(f"PRAGMA table_info({table})")]
    name = names[column % len(names)]
    if isinstance(value, bytes) and table != "answer":
        value = value.decode("utf-8", "replace")
    try:
        connection.execute(
            f"UPDATE {table} SET {name} = ? WHERE rowid = (SELECT rowid FROM {table} LIMIT 1 "
            "OFFSET ?)",
            (value, row % 5),
        )
        chain = ""
        for *content, _ in connection.execute("SELECT * FROM entry ORDER BY number").fetchall():
            chain = extend_chain(chain, content)
            connection.execute("UPDATE entry SET chain = ? WHERE number = ?", (chain, content[0]))
    except sqlite3.Error:
        connection.rollback()  # the tables do not allow this value
    for _, sql in triggers:
        connection.execute(sql)
    connection.commit()


def _forget(path):
    for ending in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{ending}").unlink(missing_ok=True)


def requests(_folder, brief):
    """Return the target of the requests of all methods, and of the frames of links."""
    others = () if brief else (_run_other_methods,)
    inputs = received_frames() + record_requests(run_few_methods, *others)
    frames = [frame for frame, _ in inputs]

    def read(item, _path):
        frame, party = item
        decode(frame, party.accepts)  # its errors are those of the reader
        serve(party, frame)

    def change(item, rng):
        return mutate(item[0], rng, frames), item[1]

    return Target("requests", inputs, read, WireError, change)


def record_requests(*trainings):
    """Run trainings; return one request of each kind, with the party that answered it."""
    heard = []
    answer = _roles.serve

    def listen(party, frame, **options):
        heard.append((frame, party))
        return answer(party, frame, **options)

    _roles.serve = listen
    try:
        for train in trainings:
            train()
    finally:
        _roles.serve = answer
    inputs, seen = [], set()
    for frame, party in heard:
        kind = type(party).__name__, getattr(party, "task", None), frame[8:40]
        if kind not in seen and len(frame) < 20_000:
            seen.add(kind)
            inputs.append((frame, party))
    return inputs


def run_few_methods():
    FlyNNClassifier(n_units=16, n_active=2).fit(X, Y, parties=OWNER)
    FedPNNClassifier(min_count=2, n_features_to_select=2).fit(X, Y, parties=OWNER)
    search = FederatedNeighbors(algorithm="dann").fit(X, parties=OWNER)
    search.kneighbors(X[:2], n_neighbors=3)


def _run_other_methods():
    declared = {"classes": (0, 1, 2), "bounds": (-4, 4)}
    sizes, owned = {"n_units": 16, "n_active": 2}, {"parties": OWNER}
    candidate = Candidate("feature", "mirror", 40, 2)
    FlyNNSearchCV(3, candidates=[candidate], n_finalists=None, n_active=(2, 4)).fit(X, Y, **owned)
    FedPNNClassifier(min_count=2, frame="local", metric=None).fit(X, Y, **owned)
    for mechanism, delta in (("local", 0), ("central", "1e-6")):
        privacy = Privacy(1, delta, mechanism, **declared)
        FlyNNClassifier(privacy=privacy, **sizes).fit(X, Y, **owned)
        FedPNNClassifier(privacy=privacy).fit(X, Y, **owned)
    paper = Privacy(1, mechanism="paper", n_picks=4, **declared)
    FlyNNClassifier(privacy=paper, **sizes).fit(X, Y, **owned)
    KNNPerClassifier(privacy=Privacy(2, "1e-5", **declared), **QUICK).fit(X, Y, **owned)
    train_networks()
    for algorithm in ("baseline", "hufu", "auto"):
        search = FederatedNeighbors(algorithm=algorithm).fit(X, parties=OWNER)
        search.kneighbors(X[:2], n_neighbors=3)
    FederatedNeighborsClassifier().fit(X, Y, parties=OWNER).predict(X[:3])
    words = ["cat", "car", "dog", "dot", "cart", "do"] * 6
    search = FederatedNeighbors(algorithm="dann", metric="edit").fit(words, parties=OWNER)
    search.kneighbors(["cat"], n_neighbors=3)
    noisy = FederatedNeighbors(algorithm="dann*", privacy=Privacy(1, "1e-6"))
    noisy.fit(X, parties=OWNER).kneighbors(X[:1], n_neighbors=3)


def train_networks():
    """Train exact kNN-Per by messages; the estimator sends none in one process."""
    rounds, settings = RoundSettings(n_rounds=1), MemorySettings(combine="pool")
    for task, y in ((CLASSIFICATION, Y), (REGRESSION, X[:, :1])):
        network = perceptron(3, 3 if y is Y else 1, hidden=(4,))
        options = {"settings": settings, "task": task}
        members = [
            KNNPerParty(name, X[name == OWNER], y[name == OWNER], network, **options)
            for name in np.unique(OWNER).tolist()
        ]
        _inprocess.run(coordinate(rounds, settings, network, task, standardize=True), members)
