"""A provider that is a broker over its own shards: the same answers, still exact."""

from contextlib import ExitStack

import numpy as np
import pytest

from fedneighbors.errors import DataError, SourceError
from fedneighbors.methods.fedknn._filters import FilterColumns
from fedneighbors.methods.fedknn._sources import MemorySource
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.service import ServiceError, _shards
from fedneighbors.service._access_log import AccessLog
from fedneighbors.service._config import OfferSection, PolicySection
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.sources import SourceSettings
from tests.service.deployment import deployed, offered

SHARDS = ("s0", "s1", "s2", "s3")
OWNERS = ("east", "west")
KINDS = {"age": "number"}
ALGORITHMS = ("baseline", "dann", "eager", "hufu", "hufu+", "auto")
SECTION = {"metric": "euclidean", "filters": KINDS}
N = 400


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return {
        "points": rng.integers(0, 6, (N, 2)).astype(float),
        "owners": rng.integers(0, 2, N),
        "shards": rng.choice(4, N, p=[0.7, 0.3, 0.0, 0.0]),  # two are empty
        "age": rng.integers(0, 5, N).tolist(),
    }


def shard_of(rows, owner, shard):
    own = np.flatnonzero((rows["owners"] == owner) & (rows["shards"] == shard)).tolist()
    return offered(
        SHARDS[shard], "part", "euclidean", rows["points"][own].reshape(-1, 2),
        ids=[str(row) for row in own], columns={"age": [rows["age"][row] for row in own]},
        filters=KINDS,
    )  # fmt: skip


@pytest.fixture(scope="module")
def deployment(rows, tmp_path_factory):
    """Run an outer broker with two providers, each a broker over four shards."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("outer")
        outer = stack.enter_context(deployed(folder, {"points": {**SECTION, "providers": OWNERS}}))
        outer.inner = {}
        for position, owner in enumerate(OWNERS):
            inner_folder = tmp_path_factory.mktemp(owner)
            part = {**SECTION, "providers": SHARDS}
            sections = {"part": part, "sealed": {**part, "trust": "sealed"}}
            inner = stack.enter_context(deployed(inner_folder, sections))
            for shard, name in enumerate(SHARDS):
                inner.start(name, {"part": shard_of(rows, position, shard)})
            inner.wait(*SHARDS)
            (inner_folder / "token").write_text(inner.token + "\n")
            outer.inner[owner] = inner, inner_folder
            outer.start(owner, {"points": offer(outer, owner)})
        outer.wait(*OWNERS)
        yield outer


def offer(outer, owner, *, filters=KINDS, **changes):
    inner, folder = outer.inner[owner]
    source = {
        "kind": "broker", "url": inner.url, "collection": "part", "token_file": "token",
        "certificate": str(inner.certificate), **changes,
    }  # fmt: skip
    section = OfferSection.model_validate(
        {**SECTION, "filters": filters, "source": source, "policy": {"level": "distances"}}
    )
    return OfferedObjects.read(owner, "points", section, folder, secret=b"s")


def find_naively(rows, query, k, where):
    """Return the nearest objects of all shards in the order of (distance, tie key)."""
    found = []
    for position, owner in enumerate(OWNERS):
        own = np.flatnonzero(rows["owners"] == position).tolist()
        names = [f"{SHARDS[rows['shards'][row]]}/{row}" for row in own]
        columns = FilterColumns.of({"age": [rows["age"][row] for row in own]}, len(own))
        source = MemorySource(
            rows["points"][own], metric_of("euclidean"), owner=owner, epoch=b"", ids=names,
            columns=columns,
        )  # fmt: skip
        batch = source.open(query, where).next(len(own))
        found += zip(batch.distances.tolist(), batch.ties.tolist(), batch.ids, strict=True)
    return sorted(found)[:k]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_answers_over_two_times_four_shards_are_exact(deployment, rows, algorithm):
    client = deployment.client("points", algorithm=algorithm)
    rng = np.random.default_rng(1)
    for number in range(8):
        query = rng.integers(0, 12, 2) / 2
        k, where = (1, 9, 60, N + 1)[number % 4], (None, {"age": {">=": 3}})[number // 4]
        distances, objects = client.kneighbors([query], k, where=where)
        expected = find_naively(rows, query, k, where)
        assert distances[0].tolist() == [distance for distance, *_ in expected]
        assert [found.id for found in objects[0]] == [name for *_, name in expected]
        assert client.results_[0]["exact"]


def test_counts_over_shards_are_exact(deployment, rows):
    client = deployment.client("points")
    distances = np.sqrt(((rows["points"] - 2.5) ** 2).sum(axis=1))
    assert client.count([[2.5, 2.5]], 1.0).tolist() == [int((distances <= 1.0).sum())]
    assert client.count_filtered({"age": 4}) == rows["age"].count(4)


def test_a_wrong_query_is_the_users_fault(deployment):
    with pytest.raises(Exception, match="invalid-query"):
        deployment.client("points").kneighbors([[1.0, 2.0, 3.0]], 1)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"collection": "other"}, SourceError, "there is no collection 'other'"),
        ({"url": "https://127.0.0.1:9"}, SourceError, "cannot reach the broker"),
        ({"collection": "sealed"}, DataError, "expected the trust 'trusted'"),
        ({"colour": "red"}, DataError, "expected the options"),
        ({"token_file": "nowhere"}, DataError, "cannot read the password file"),
    ],
)
def test_wrong_settings_are_refused(deployment, changes, error, message):
    with pytest.raises(error, match=message):
        offer(deployment, "east", **changes)


def test_every_request_to_the_broker_is_complete_and_has_its_own_deadline(monkeypatch, tmp_path):
    class Client:
        deadline_s, results_ = 30.0, [{"count": 3, "epochs": {}}]

        def __init__(self, url, *, allow_partial, **options):
            assert allow_partial is False  # counts without a shard would be too low

        def describe(self):
            found = {"metric": "euclidean", "filters": KINDS, "trust": "trusted"}
            return {**found, "distance_steps": {}}

        def count(self, queries, radius, where):
            assert self.deadline_s == 1.0

        def count_filtered(self, where):
            assert self.deadline_s == 30.0
            return 2

    monkeypatch.setattr(_shards, "RemoteNeighbors", Client)
    (tmp_path / "token").write_text("t")
    options = {"url": "https://inner", "collection": "part", "token_file": "token"}
    source = _shards.BrokerSource(
        SourceSettings("euclidean", options, filters=KINDS, folder=tmp_path)
    )
    source.ask([0.0, 0.0], 1.0, radius=1.0, where=None)
    assert source.size({"age": 1}) == 2


def test_a_count_after_a_change_of_a_shard_is_an_error():
    class Source:
        payload, epoch = (), "1"

        def ask(self, query, deadline_s, **fields):
            return {"count": 3, "exact": True, "neighbors": [], "epochs": {"s0": self.epoch}}

    source = Source()
    candidates = _shards.BrokerCandidates(source, [0.0], None)
    candidates.read(3, deadline_s=None)
    assert candidates.count(1.0, deadline_s=None).n_certain == 3
    source.epoch = "2"
    with pytest.raises(SourceError, match="have changed during the query"):
        candidates.count(1.0, deadline_s=None)


def test_shards_learn_the_purpose_of_each_query(tmp_path):
    for name in ("inner", "outer"):
        (tmp_path / name).mkdir()
    section, points = {"metric": "euclidean"}, np.arange(4.0)[:, np.newaxis]
    policy = PolicySection(level="distances", purposes=("treatment", "planning"))
    with (
        deployed(tmp_path / "inner", {"part": {**section, "providers": ["s0"]}}) as inner,
        deployed(tmp_path / "outer", {"points": {**section, "providers": ["east"]}}) as outer,
    ):
        shard, log = offered("s0", "part", "euclidean", points), AccessLog(tmp_path / "log.sqlite")
        inner.start(
            "s0", {"part": OfferedObjects(shard.party, shard.offer, policy=policy, log=log)}
        )
        inner.wait("s0")
        (tmp_path / "inner/token").write_text(inner.token)
        outer.inner = {"east": (inner, tmp_path / "inner")}
        outer.start("east", {"points": offer(outer, "east", filters={})})
        outer.wait("east")
        for purpose in ("treatment", "planning"):
            with outer.client("points", purpose=purpose) as client:
                assert client.kneighbors([[1.0]], 1)[0][0].tolist() == [0.0]
                assert client.count([[1.0]], 1.0).tolist() == [3]
        for purpose in (None, "marketing"):
            with (
                outer.client("points", purpose=purpose) as client,
                pytest.raises(ServiceError, match="purpose-refused"),
            ):
                client.kneighbors([[1.0]], 1)
        purposes = [entry["purpose"] for entry in log.entries() if not entry["outcome"]]
        assert set(purposes[: len(purposes) // 2]) == {"treatment"}
        assert set(purposes[len(purposes) // 2 :]) == {"planning"}


def test_a_missing_shard_is_reported(deployment, rows):
    inner, _ = deployment.inner["west"]
    inner.stop("s1")
    try:
        with pytest.raises(Exception, match="the source of the objects failed"):
            deployment.client("points", deadline_s=2.0).kneighbors([[1.0, 1.0]], 3)
    finally:
        inner.start("s1", {"part": shard_of(rows, 1, 1)})
        inner.wait(*SHARDS)
    assert deployment.client("points").kneighbors([[1.0, 1.0]], 3)[1][0]
