"""Clients in Python: their methods, tables of results, asyncio, votes."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors import FederatedNeighbors, FederatedNeighborsClassifier
from fedneighbors.cli._main import app
from fedneighbors.cli._search import _print_answer
from fedneighbors.errors import DataError, FederationError
from fedneighbors.methods.fedknn import _provider
from fedneighbors.methods.fedknn.protocol import RangeCountReply
from fedneighbors.service import (
    AsyncRemoteNeighbors,
    BrokerUnreachable,
    RemoteNeighbors,
    RemoteNeighborsClassifier,
    ServiceError,
    _remote_search,
)
from fedneighbors.service._remote_search import _BATCH, ApiRequest, RemoteResults, TimeLeft
from tests.service.deployment import deployed, offered

OWNERS = ["north", "south"]
ROWS = np.random.default_rng(3).integers(0, 7, (50, 2)).astype(np.float64)
PARTIES = np.array(OWNERS)[np.arange(50) % 2]
LABELS = np.array(["red", "green", "blue"])[np.arange(50) % 3]
AGES = (np.arange(50) % 7).tolist()
QUERIES = np.random.default_rng(4).uniform(0, 7, (30, 2)).round(1)
KINDS = {"age": "number"}
SECTIONS = {
    "points": {"metric": "euclidean", "providers": OWNERS, "filters": KINDS, "tie_key": "0"},
    "products": {"metric": "inner_product", "providers": OWNERS, "tie_key": "0"},
    "words": {"metric": "edit", "providers": OWNERS},
    "empty": {"metric": "euclidean", "providers": ["north"]},
}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with deployed(tmp_path_factory.mktemp("broker"), SECTIONS) as running:
        for provider in OWNERS:
            rows = np.flatnonzero(provider == PARTIES)
            options = {"ids": [str(row) for row in rows], "tie_key": "0"}
            ages = {"columns": {"age": [AGES[row] for row in rows]}, "filters": KINDS}
            offers = {
                "points": offered(provider, "points", "euclidean", ROWS[rows], **options, **ages),
                "products": offered(provider, "products", "inner_product", ROWS[rows], **options),
                "words": offered(provider, "words", "edit", [f"{provider} {n}" for n in range(4)]),
            }
            if provider == "north":
                offers["empty"] = offered(provider, "empty", "euclidean", np.empty((0, 2)))
            running.start(provider, offers)
        running.wait(*OWNERS)
        yield running


@pytest.fixture(scope="module")
def pooled():
    return FederatedNeighbors().fit(ROWS, parties=PARTIES, columns={"age": AGES})


def call_async(deployment, method, *arguments, collection="points", **options):
    """Return the result of a method of the asynchronous client, and the client's answers."""

    async def call():
        async with AsyncRemoteNeighbors(
            deployment.url,
            collection=collection,
            token=deployment.token,
            certificate=deployment.certificate,
        ) as search:
            return await getattr(search, method)(*arguments, **options), search.results_

    return asyncio.run(call())


def call_sync(deployment, method, *arguments, collection="points", **options):
    with deployment.client(collection) as search:
        return getattr(search, method)(*arguments, **options), search.results_


@pytest.fixture(params=[call_sync, call_async])
def call(request, deployment):
    return lambda *arguments, **options: request.param(deployment, *arguments, **options)


@pytest.mark.parametrize("where", [None, {"age": {">=": 3}}])
@pytest.mark.parametrize(
    ("method", "value"), [("kneighbors", 6), ("radius_neighbors", 1.5), ("radius_neighbors", 0)]
)
def test_neighbors_are_those_of_one_process(call, pooled, method, value, where):
    (distances, objects), results = call(method, QUERIES, value, where=where)
    expected, positions = getattr(pooled, method)(QUERIES, value, where=where)
    assert len(results) == len(objects) == len(QUERIES)
    for query in range(len(QUERIES)):
        assert distances[query].tobytes() == expected[query].tobytes()
        assert [int(found.id) for found in objects[query]] == positions[query].tolist()
        assert [found.provider for found in objects[query]] == PARTIES[positions[query]].tolist()
    only = call(method, QUERIES, value, where=where, return_distance=False)[0]
    assert only == objects


def test_counts_are_those_of_one_process(call, pooled):
    for radius, where in ((1.5, None), (1e9, {"age": 2}), (0, None)):
        found = pooled.radius_neighbors(QUERIES, radius, where=where)[1]
        counts = call("count", QUERIES, radius, where=where)[0]
        assert counts.dtype == np.int64
        assert counts.tolist() == list(map(len, found))


def test_counts_by_an_index_that_misses_objects_are_not_exact(call, deployment, monkeypatch):
    def count(n_objects, exact):
        assert exact
        return RangeCountReply(n_objects, False)

    assert call("count", QUERIES, 1.5)[1][0]["exact"]
    monkeypatch.setattr(_provider, "RangeCountReply", count)
    answers = call("count", QUERIES, 1.5)[1]
    shown = run_search(deployment, monkeypatch, "points", "2.5,3", "--radius", "2", "--count")

    assert not any(answer["exact"] for answer in answers)
    assert "not certified as exact" in shown.stdout


def test_a_plan_names_the_algorithms(call):
    plan, _ = call("explain", QUERIES[:1], 5)
    assert (plan["algorithm"], plan["k"]) == ("eager", 5)
    assert {cost["algorithm"] for cost in plan["costs"]} == {"baseline", "dann", "eager"}
    assert call("explain", "north 2", 1, collection="words")[0]["k"] == 1
    with pytest.raises(ValueError, match="expected one query, got 2"):
        call("explain", QUERIES[:2])


def test_a_collection_is_described(call):
    assert call("describe")[0]["n_objects"] == 50
    with pytest.raises(ServiceError, match="no collection 'cities'") as info:
        call("describe", collection="cities")
    assert info.value.code == "unknown-collection"


def test_more_queries_than_one_request_has_are_answered(call, pooled):
    queries = np.tile(QUERIES, (2, 1))
    assert len(queries) > _BATCH
    (distances, _), _ = call("kneighbors", queries, 2)
    expected, _ = pooled.kneighbors(queries, 2)
    assert [row.tobytes() for row in distances] == [row.tobytes() for row in expected]
    assert call("kneighbors", [], 2)[0] == ([], [])


def test_the_first_wrong_query_of_many_is_an_error(call):
    with pytest.raises(ServiceError, match="expected a vector of 2 numbers, got 1") as info:
        call("kneighbors", [[0.0, 1.0], [0.0], [1.0, 2.0]], 2)
    error = info.value
    assert (error.status, error.code, error.retryable) == (422, "invalid-query", False)
    assert len(error.query_id) == 16
    with pytest.raises(ServiceError, match="limit of 10000"):
        raise ServiceError.of({"code": "too-many-objects", "detail": "limit of 10000"}, 422)


def test_threads_share_a_client(deployment, pooled):
    expected, positions = pooled.kneighbors(QUERIES, 3)
    n_threads, errors = 6, []
    all_have_asked = threading.Barrier(n_threads)

    def search(client, thread):
        try:
            for query in range(thread, len(QUERIES), n_threads):
                distances, objects = client.kneighbors(QUERIES[query : query + 1], 3)
                assert distances[0].tobytes() == expected[query].tobytes()
                assert [int(found.id) for found in objects[0]] == positions[query].tolist()
            all_have_asked.wait(30)
            (answer,) = client.results_
            assert [one["distance"] for one in answer["neighbors"]] == distances[0].tolist()
        except Exception as error:
            all_have_asked.abort()
            errors.append(error)

    with deployment.client("points") as client:
        threads = [
            threading.Thread(target=search, args=(client, number)) for number in range(n_threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert client.results_ == []
    assert not errors


def test_an_unreachable_broker_or_another_server_is_an_error():
    async def search():
        options = {"collection": "a", "token": "b"}
        async with AsyncRemoteNeighbors("http://127.0.0.1:9", **options) as client:
            await client.kneighbors("a", 1)

    with pytest.raises(FederationError, match=r"cannot reach the broker at http://127.0.0.1:9"):
        asyncio.run(search())
    answer = httpx.Response(200, text="hello", request=httpx.Request("GET", "http://a.example/"))
    with pytest.raises(FederationError, match=r"a.example/ does not answer like a broker"):
        ApiRequest("GET", "/").read(answer)
    with pytest.raises(ServiceError, match="an error without a description"):
        ApiRequest("GET", "/").read(httpx.Response(502, text="bad gateway"))
    with pytest.raises(ServiceError) as info:
        ApiRequest("GET", "/").read(httpx.Response(502, json={"status": "Bad Gateway"}))
    assert info.value.status == 502


def test_a_client_without_tls_is_told_to_use_it(tmp_path):
    with deployed(tmp_path, {"a": {"metric": "edit", "providers": ["north"]}}) as deployment:
        url = deployment.url.replace("https", "http")
        with (
            RemoteNeighbors(url, collection="a", token="b") as client,
            pytest.raises(BrokerUnreachable, match="A broker with TLS needs an address https://"),
        ):
            client.kneighbors("a", 1)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_stopped_broker_is_unreachable_after_the_deadline(scheme):
    options = {"collection": "a", "token": "b", "deadline_s": 0.1}
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts, and never answers
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"

        async def search():
            async with AsyncRemoteNeighbors(url, **options) as client:
                await client.kneighbors("a", 1)

        for run in (
            lambda: RemoteNeighbors(url, **options).kneighbors("a", 1),
            lambda: RemoteNeighbors(url, **options).kneighbors(["a", "b"], 1),
            lambda: asyncio.run(search()),
        ):
            with pytest.raises(BrokerUnreachable, match=r"no answer within 0.15 s") as caught:
                run()
            assert (caught.value.url, caught.value.retryable) == (url, True)


def test_all_steps_of_a_request_end_at_the_deadline(monkeypatch):
    now = 100.0
    monkeypatch.setattr(_remote_search.time, "monotonic", lambda: now)
    left = TimeLeft(2.0)
    assert dict(left) == {"connect": 2.0, "read": 2.0, "write": 2.0, "pool": 2.0}
    now = 101.5
    assert left.get("read") == 0.5
    now = 110.0
    assert 0 < left["read"] < 0.01  # 0 would not wait at all


@pytest.mark.parametrize(("deadline_s", "sent_s"), [(1.0, 0.9), (30.0, 29.75)])
def test_a_part_of_the_deadline_is_for_the_network(deadline_s, sent_s):
    options = {"collection": "a", "token": "b", "deadline_s": deadline_s}
    with RemoteNeighbors("http://127.0.0.1:9", **options) as client:
        (request,) = client._ask("search", ["a"], k=1)
    assert json.loads(request.content)["deadline_s"] == sent_s


def test_the_name_of_a_collection_is_no_path(deployment):
    with deployment.client("a?b#c") as search:
        with pytest.raises(ServiceError, match=r"no collection 'a\?b#c'"):
            search.kneighbors("a", 1)
        with pytest.raises(ServiceError, match=r"no collection 'a\?b#c'"):
            search.describe()


def test_results_are_tables(call):
    (distances, objects), results = call("kneighbors", QUERIES[:3], 4)
    table = results.to_pandas()
    assert list(table.columns) == ["query", "provider", "id", "distance"]
    assert table["query"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert table["distance"].tolist() == np.concatenate(distances).tolist()
    found = list(zip(table["provider"], table["id"], strict=True))
    assert found == [tuple(one) for row in objects for one in row]
    arrow = results.to_arrow()
    assert arrow.to_pydict() == {name: table[name].tolist() for name in table.columns}
    _, empty = call("kneighbors", QUERIES[:1], 4, collection="empty")
    assert empty.to_arrow().num_rows == len(empty.to_pandas()) == 0
    assert str(empty.to_arrow().schema.field("id").type) == "string"


def test_a_payload_replaces_no_column_of_a_table():
    payload = {"id": 7, "distance": 0.0, "age": 4}
    one = {"provider": "north", "id": "a", "distance": 2.0, "payload": payload}
    columns = RemoteResults([{"neighbors": [one]}]).to_columns()
    assert (columns["provider"], columns["id"], columns["distance"].tolist()) == (
        ["north"],
        ["a"],
        [2.0],
    )
    found = {name: columns[name] for name in ("payload_id", "payload_distance", "age")}
    assert found == {"payload_id": [7], "payload_distance": [0.0], "age": [4]}


def test_queries_of_one_asynchronous_client_run_side_by_side(deployment, pooled):
    async def search_all():
        options = {"collection": "points", "token": deployment.token}
        async with AsyncRemoteNeighbors(
            deployment.url, certificate=deployment.certificate, **options
        ) as search:
            calls = (search.kneighbors([query], 3, return_distance=False) for query in QUERIES)
            return [found for (found,) in await asyncio.gather(*calls)]

    expected = pooled.kneighbors(QUERIES, 3, return_distance=False)
    assert [[int(one.id) for one in found] for found in asyncio.run(search_all())] == [
        row.tolist() for row in expected
    ]


@pytest.mark.parametrize("weights", ["uniform", "distance"])
@pytest.mark.parametrize("n_neighbors", [1, 4, 100])
def test_votes_equal_those_of_one_process(deployment, weights, n_neighbors):
    queries = np.vstack([QUERIES, ROWS[:5]])  # with distances of 0
    options = {"n_neighbors": n_neighbors, "weights": weights}
    expected = FederatedNeighborsClassifier(**options).fit(ROWS, LABELS, parties=PARTIES)
    objects = [(owner, str(row)) for row, owner in enumerate(PARTIES.tolist())]
    with deployment.client("points") as search:
        for arguments in ((objects, LABELS), (dict(zip(objects, LABELS.tolist(), strict=True)),)):
            model = RemoteNeighborsClassifier(search, **options).fit(*arguments)
            assert model.classes_.tolist() == ["blue", "green", "red"]
            probabilities = model.predict_proba(queries)
            assert probabilities.tobytes() == expected.predict_proba(queries).tobytes()
            assert model.predict(queries).tolist() == expected.predict(queries).tolist()


def test_a_vote_needs_labels_and_neighbors(deployment):
    objects = [(owner, str(row)) for row, owner in enumerate(PARTIES.tolist())]
    with deployment.client("points") as search:
        model = RemoteNeighborsClassifier(search, 3).fit(objects[:3], LABELS[:3])
        with pytest.raises(DataError, match="is a neighbor without a label"):
            model.predict(QUERIES)
        with pytest.raises(ValueError, match="named twice"):
            model.fit([*objects, objects[0]], [*LABELS, "red"])
        for arguments in ((objects,), (dict.fromkeys(objects, "red"), LABELS)):
            with pytest.raises(ValueError, match="expected a mapping of objects to labels"):
                model.fit(*arguments)
        with pytest.raises(ValueError, match="one for each of 50 objects"):
            model.fit(objects, LABELS[:3])
        with pytest.raises(ValueError, match="expected weights as one of"):
            RemoteNeighborsClassifier(search, weights="far").fit(objects, LABELS)
    with deployment.client("products") as search:
        model = RemoteNeighborsClassifier(search, weights="distance").fit(objects, LABELS)
        with pytest.raises(ValueError, match="distances of this collection may be negative"):
            model.predict(QUERIES)
    with deployment.client("empty") as search:
        model = RemoteNeighborsClassifier(search).fit(objects, LABELS)
        with pytest.raises(DataError, match="no provider has an object"):
            model.predict(QUERIES)


def test_the_clients_import_no_server():
    program = (
        "import sys; from fedneighbors.service import AsyncRemoteNeighbors, RemoteNeighbors; "
        "servers = {'starlette', 'uvicorn', 'websockets', 'pydantic'}; "
        "first = servers | {'numba', 'sklearn', 'pandas', 'pyarrow'}; "
        "print(sorted(first & set(sys.modules))); "
        "from fedneighbors.service import RemoteNeighborsClassifier; "
        "print(sorted((servers | {'numba'}) & set(sys.modules))); "
        "print(sorted(m for m in sys.modules if m.startswith('fedneighbors.service.')))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert output[:2] == ["[]", "[]"]
    modules = ("_client", "_remote_classifier", "_remote_search", "_tls")
    assert output[2] == str([f"fedneighbors.service.{name}" for name in modules])


def test_a_client_is_closed_after_its_block(deployment):
    with deployment.client("points") as search:
        assert isinstance(search, RemoteNeighbors)
        search.kneighbors(QUERIES[:1], 1)
    with pytest.raises(RuntimeError, match="closed"):
        search.kneighbors(QUERIES[:1], 1)


def run_search(deployment, monkeypatch, *arguments, token=None):
    monkeypatch.setenv("FEDNEIGHBORS_TOKEN", deployment.token if token is None else token)
    certificate = ["--certificate", str(deployment.certificate)]
    return CliRunner().invoke(app, ["search", deployment.url, *arguments, *certificate])


def test_command_prints_the_nearest_objects(deployment, pooled, monkeypatch):
    result = run_search(
        deployment,
        monkeypatch,
        "points",
        "2.5,3",
        "-k",
        "2",
        "--where",
        '{"age": {"<": 3}}',
        "--json",
    )
    answer = json.loads(result.stdout)
    distances, rows = pooled.kneighbors([[2.5, 3]], 2, where={"age": {"<": 3}})
    assert [one["distance"] for one in answer["neighbors"]] == distances[0].tolist()
    assert [int(one["id"]) for one in answer["neighbors"]] == rows[0].tolist()

    printed = run_search(deployment, monkeypatch, "words", "north 2", "-k", "1").stdout
    first = next(line.split() for line in printed.splitlines() if "north" in line)
    assert first == ["north", "2", "0"]
    assert "exact" in printed


def test_command_answers_without_missing_providers_if_asked_to(tmp_path, monkeypatch):
    section = {"metric": "edit", "providers": ["north", "gone"]}
    with deployed(tmp_path, {"words": section}) as deployment:
        deployment.start("north", {"words": offered("north", "words", "edit", ["a", "b"])})
        deployment.wait("north")
        refused = run_search(deployment, monkeypatch, "words", "a", "-k", "1")
        done = run_search(deployment, monkeypatch, "words", "a", "--allow-partial", "--json")

    assert refused.exit_code == 1
    assert "no answer from provider gone (it is not connected)" in refused.output
    answer = json.loads(done.stdout)
    assert [answer["exact"], answer["answered"], len(answer["neighbors"])] == [False, ["north"], 2]


def test_command_counts_objects_within_a_radius(deployment, pooled, monkeypatch):
    result = run_search(deployment, monkeypatch, "points", "2.5,3", "--radius", "2", "--count")
    (rows,) = pooled.radius_neighbors([[2.5, 3]], 2, return_distance=False)
    assert result.stdout.startswith(f"{len(rows)} objects: ")

    found = run_search(deployment, monkeypatch, "points", "2.5,3", "--radius", "2")
    assert found.stdout.startswith(f"{len(rows)} nearest objects")


def test_command_shows_lists_and_places_of_a_payload_as_json(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    cells = {"at": {"type": "Point", "coordinates": [4.8, 45.7]}, "codes": ["é", 2], "age": 4}
    one = {"provider": "north", "id": "a", "distance": 2.0, "payload": cells}
    answer = {"exact": True, "answered": ["north"], "missing": {}, "neighbors": [one]}

    _print_answer(SimpleNamespace(results_=RemoteResults([answer])), "euclidean")

    shown = capsys.readouterr().out
    assert "1 nearest object\n" in shown
    assert '{"type": "Point", "coordinates": [4.8, 45.7]}' in shown
    assert '["é", 2]' in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["points", "2.5,x"], "expected 2 comma-separated numbers"),
        (["points", "1,2", "--where", "{"], "--where: expected JSON"),
        (["points", "1,2", "--count"], "--count needs --radius"),
        (["points", "1,2", "--payload", "--radius", "1", "--count"], "omit it with --count"),
        (["nothing", "1,2"], "there is no collection"),
    ],
)
def test_command_explains_wrong_arguments(deployment, monkeypatch, arguments, message):
    result = run_search(deployment, monkeypatch, *arguments)
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())


def test_command_needs_a_token(deployment, monkeypatch):
    result = run_search(deployment, monkeypatch, "points", "1,2", token="")
    assert result.exit_code == 1
    assert "no token in FEDNEIGHBORS_TOKEN" in result.output
