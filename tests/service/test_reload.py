"""A provider replaces its collections while it answers."""

import asyncio
import os
import signal
import threading
from collections import deque
from contextlib import contextmanager

import httpx
import numpy as np
import pytest

from fedneighbors.errors import SourceError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.methods.fedknn._queries import encode_query
from fedneighbors.methods.fedknn.protocol import NearestReply, NearestRequest
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service import RemoteNeighbors, ServiceError, _offers, _provider
from fedneighbors.service._config import ProviderConfig
from fedneighbors.service._loading import Forgotten
from fedneighbors.service._messages import LinkReplies, LinkRequest
from fedneighbors.service._provider import ProviderService
from fedneighbors.service._server import add_local_provider
from tests.processes import LIMIT_S
from tests.service.deployment import deployed, offered
from tests.service.test_processes import Commands, free_port
from tests.sources.test_contract import ListSource, rows_of

POINTS = np.arange(20.0)[:, np.newaxis]


def make_service(load, **options):
    first = {"points": offered("north", "points", "euclidean", POINTS)}
    return ProviderService("north", None, first, load, **options)


def ask(service, query, step, count, closed=()):
    request = NearestRequest(query, encode_query([0.0]), count, None)
    sent = LinkRequest(step, "points", query, step, 1000, encode(request))
    frame = service._answer("points", deque([(np.inf, sent)]), closed)
    (body,) = decode(frame, (LinkReplies,)).bodies
    return tuple(decode(body, (NearestReply,)).ids)


def test_an_open_query_keeps_the_former_objects():
    names = [f"new{row}" for row in range(20)]

    def load(on_query):
        return {"points": offered("north", "points", "euclidean", POINTS, ids=names)}

    service, released = make_service(load), []
    service._collections["points"].release = lambda: released.append(True)
    assert ask(service, "old", 0, 2) == ("0", "1")
    asyncio.run(service.reload())
    assert ask(service, "new", 0, 2) == ("new0", "new1")
    assert ask(service, "old", 1, 2) == ("2", "3")
    assert not released
    assert ask(service, "new", 1, 1, closed=("old",)) == ("new2",)
    assert released == [True]
    assert not service._retired["points"]


def test_queries_of_former_objects_are_closed_after_a_while(monkeypatch):
    def load(on_query):
        return {"points": offered("north", "points", "euclidean", POINTS)}

    service = make_service(load)
    ask(service, "old", 0, 2)
    asyncio.run(service.reload())
    (former,) = service._retired["points"]
    former.drop_old()
    assert former.has("old")
    monkeypatch.setattr(_offers, "IDLE_S", -1.0)
    former.drop_old()
    assert not former.has("old")


def test_a_reload_that_fails_replaces_nothing(caplog):
    def load(on_query):
        raise SourceError("the database is away")

    service = make_service(load)
    asyncio.run(service.reload())
    assert "not reloaded: the database is away" in caplog.text
    assert ask(service, "q", 0, 1) == ("0",)


def test_a_reload_that_fails_closes_what_it_opened(tmp_path, monkeypatch, caplog):
    closed = []

    class Source(ListSource):
        def close(self):
            closed.append(self)

    def make(settings):
        return Source(rows_of(5, 0), np.random.default_rng(0))

    monkeypatch.setattr(_offers, "find_source", lambda kind: make)
    words, path = tmp_path / "words.txt", tmp_path / "provider.toml"
    words.write_text("alpha\n")
    Identity.new().write(tmp_path / "provider.pem")
    path.write_text(
        'format = 1\n[provider]\nname = "north"\nbroker = "https://b"\nkey = "provider.pem"\n'
        '[collections.points]\nmetric = "manhattan"\nsource = { kind = "list" }\n'
        '[collections.words]\nmetric = "edit"\nsource = { file = "words.txt" }\n'
    )
    service = ProviderService.of(ProviderConfig.read(path))
    used = service._collections["points"].party.source.candidates
    words.unlink()
    asyncio.run(service.reload())
    assert "the collections were not reloaded" in caplog.text
    assert len(closed) == 1
    monkeypatch.setattr(Source, "size", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # within a collection
        asyncio.run(service.reload())
    assert len(closed) == 2
    assert used not in closed
    assert service._collections["points"].party.source.candidates is used


def test_the_broker_learns_of_a_reload(tmp_path):
    section = {"metric": "euclidean", "providers": ["north"]}
    offers = [offered("north", "points", "euclidean", POINTS[:3])]
    with deployed(tmp_path, {"points": section}) as deployment:
        deployment.enrol("north")
        identity = deployment.identities["north"]
        service = ProviderService(
            "north", identity, {"points": offers[0]}, lambda on_query: {"points": offers[-1]}
        )
        work = service.run(deployment.url, deployment.certificate.read_text())
        deployment.tasks["north"] = asyncio.run_coroutine_threadsafe(work, deployment.loop)
        deployment.wait("north")
        link = deployment.broker.registry.links["north"]
        client = deployment.client("points")
        for n_objects in (5, 0, 20):
            offers.append(offered("north", "points", "euclidean", POINTS[:n_objects]))
            deployment.run(service.reload())
            # the reply is behind the offers on the link
            assert len(client.kneighbors([[0.0]], 10)[1][0]) == min(n_objects, 10)
            assert link.collections["points"].n_objects == n_objects
        offers.append(offered("north", "points", "manhattan", POINTS))
        deployment.run(service.reload())
        with pytest.raises(Exception, match="metric"):
            deployment.tasks["north"].result(20)


def test_objects_are_read_again_regularly():
    loads, enough = [], asyncio.Event()

    def load(on_query):
        loads.append(offered("north", "points", "euclidean", POINTS[: len(loads) + 1]))
        if len(loads) == 4:  # three have replaced the objects
            loop.call_soon_threadsafe(enough.set)
        return {"points": loads[-1]}

    async def run():
        nonlocal loop
        loop = asyncio.get_running_loop()
        service = make_service(load, reload_s=0.001)
        work = loop.create_task(service._reload_regularly())
        await enough.wait()
        work.cancel()
        return service._collections["points"]

    loop = None
    assert asyncio.run(run()).offer.n_objects >= 3


def test_paused_provider_has_no_link(tmp_path):
    pause_file, offers = tmp_path / "paused", [offered("north", "points", "euclidean", POINTS)]
    section = {"metric": "euclidean", "providers": ["north"]}
    with deployed(tmp_path, {"points": section}) as deployment:
        deployment.enrol("north")
        connected = threading.Event()
        service = ProviderService(
            "north", deployment.identities["north"], {"points": offers[0]}, pause_file=pause_file
        )
        work = service.run(
            deployment.url, deployment.certificate.read_text(), on_connected=connected.set
        )
        deployment.tasks["north"] = asyncio.run_coroutine_threadsafe(work, deployment.loop)
        client = deployment.client("points", allow_partial=True)
        for _ in range(2):
            assert connected.wait(20)
            deployment.wait("north")
            assert len(client.kneighbors([[0.0]], 10)[1][0]) == 10

            pause_file.touch()
            deployment.run(wait_for_loss(deployment.broker.registry, "north"))
            with pytest.raises(ServiceError, match="provider-missing"):
                deployment.client("points").kneighbors([[0.0]], 10)
            connected.clear()
            pause_file.unlink()


def test_objects_are_read_again_when_some_are_forgotten(tmp_path, monkeypatch):
    path, loads, failures = tmp_path / "forgotten", [], iter([True])
    monkeypatch.setattr(_provider, "_LOOK_S", 0.01)
    monkeypatch.setattr(_provider, "MAX_WAIT_S", 0.01)

    def load(on_query):
        if next(failures, False):
            raise SourceError("the database is away")
        loads.append(path.read_text())
        loop.call_soon_threadsafe(loaded.set)
        return {"points": offered("north", "points", "euclidean", POINTS)}

    async def run():
        nonlocal loop, loaded
        loop, loaded = asyncio.get_running_loop(), asyncio.Event()
        work = loop.create_task(make_service(load, forgotten_file=path)._reload_changed())
        for text in ("a", "ab"):
            path.write_text(text)
            await loaded.wait()
            loaded.clear()
        work.cancel()

    loop = loaded = None
    asyncio.run(run())
    assert loads == ["a", "ab"]


async def wait_for_loss(registry, name):
    while name in registry.links:
        await asyncio.sleep(0.01)


PROVIDER = """format = 1
[provider]
name = "north"
broker = "https://b"
[collections.titles]
metric = "edit"
source = { file = "titles.csv", columns = ["title"], id = "id" }
"""
MORE = '[collections.more]\nmetric = "edit"\nsource = { file = "titles.txt"'


def write_provider(folder, policy):
    """Write a configuration with a policy; return its path."""
    (folder / "provider.toml").write_text(f"{PROVIDER}policy = {{ {policy} }}\n")
    return folder / "provider.toml"


@contextmanager
def configured(folder, policy):
    """Run a provider with a policy; yield the deployment and the service."""
    (folder / "state").mkdir()
    Identity.new().write(folder / "state/provider.pem")
    (folder / "titles.csv").write_text("id,title\nn1,alpha\nn2,beta\n")
    path = write_provider(folder, policy)
    with deployed(folder, {"titles": {"metric": "edit", "providers": ["north"]}}) as deployment:
        service = ProviderService.of(ProviderConfig.read(path), path)
        deployment.identities["north"] = service._identity
        add_local_provider(deployment.broker.state, "north", service._identity)
        work = service.run(deployment.url, deployment.certificate.read_text())
        deployment.tasks["north"] = asyncio.run_coroutine_threadsafe(work, deployment.loop)
        deployment.wait("north")
        yield deployment, service


def test_policies_are_read_again_and_quotas_stay_spent(tmp_path, caplog):
    with configured(tmp_path, "queries_per_day = 2") as (deployment, service):
        client = deployment.client("titles")
        assert np.isnan(client.kneighbors("alpha", 1)[0][0]).all()
        write_provider(tmp_path, 'level = "distances", queries_per_day = 2')
        deployment.run(service.reload())  # as it does regularly
        assert "another policy" not in caplog.text
        assert deployment.run(service.reload(policies=True))
        assert "reloaded titles: 2 objects, another policy" in caplog.text
        assert client.kneighbors("alpha", 1)[0][0].tolist() == [0.0]
        with pytest.raises(ServiceError, match="quota"):
            client.kneighbors("beta", 1)
        write_provider(tmp_path, "queries_per_day = 3")
        assert deployment.run(service.reload(policies=True))
        assert np.isnan(client.kneighbors("beta", 1)[0][0]).all()
        with pytest.raises(ServiceError, match="quota"):
            client.kneighbors("gamma", 1)


def test_the_broker_learns_of_a_policy_before_replies_under_it(tmp_path):
    with configured(tmp_path, 'level = "distances"') as (deployment, service):
        seen = []
        deployment.broker.on_offer = lambda _, one: seen.append(
            (one.grant_for("")["level"], one.n_objects)
        )
        (tmp_path / "titles.csv").write_text("id,title\nn1,alpha\n")
        write_provider(tmp_path, 'level = "ids"')
        deployment.run(service.reload(policies=True))
        assert np.isnan(deployment.client("titles").kneighbors("alpha", 1)[0][0]).all()
        assert seen == [("ids", 2), ("ids", 1)]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ('level = "all"', "provider.toml: collections.titles.policy.level: input should be"),
        ('level = "none", payload = ["pages"]', "has no column 'pages'"),
        ('level = "none" }\nfilters = { id = "text"', "collections.titles was changed, and only"),
        (f'level = "none" }}\n{MORE}', "collections was changed, and only policies"),
    ],
)
def test_an_invalid_policy_leaves_the_old_one_in_force(tmp_path, caplog, policy, message):
    with configured(tmp_path, 'level = "distances"') as (deployment, service):
        write_provider(tmp_path, policy)
        assert not deployment.run(service.reload(policies=True))
        assert "the collections were not reloaded: " in caplog.text
        assert message in caplog.text
        assert deployment.run(service.reload())
        client = deployment.client("titles")
        assert client.kneighbors("alpha", 2)[0][0].tolist() == [0.0, 4.0]


@pytest.mark.e2e
def test_a_process_answers_during_a_reload(tmp_path):
    port, commands = free_port(), Commands()
    (tmp_path / "broker.toml").write_text(
        f'format = 1\n[server]\nlisten = "127.0.0.1:{port}"\n[collections.titles]\n'
        'metric = "edit"\nproviders = ["north"]\n'
    )
    (tmp_path / "provider.toml").write_text(
        f'format = 1\n[provider]\nname = "north"\nbroker = "https://127.0.0.1:{port}"\n'
        '[collections.titles]\nmetric = "edit"\nsource = { file = "titles.csv", '
        'columns = ["title"], id = "id" }\n'
    )
    # the names tell which version of the table an answer is from
    versions = [
        "id,title\n" + "".join(f"{name}{row},graph search {row}\n" for row in range(1000))
        for name in "ab"
    ]
    table = tmp_path / "titles.csv"
    table.write_text(versions[0])
    answers, errors, ended = [], [], threading.Event()
    try:
        server = commands.start(tmp_path, "broker", "serve")
        commands.wait_for(server, "the broker answers at")
        code = commands.call(tmp_path, "broker", "enrol", "north")
        commands.call(tmp_path, "provider", "enrol", code)
        assert "1000 objects, edit, epoch" in commands.call(tmp_path, "provider", "check")
        provider = commands.start(tmp_path, "provider", "serve")
        commands.wait_for(provider, "connected to")
        token = commands.call(tmp_path, "broker", "token", "alice")

        def connect():
            return RemoteNeighbors(
                f"https://127.0.0.1:{port}",
                collection="titles",
                token=token,
                certificate=tmp_path / "state/server.crt",
            )

        def search():
            try:
                with connect() as other:
                    while not ended.is_set():
                        answers.append(other.kneighbors("graph search 7", 20)[1][0])
            except Exception as error:
                errors.append(error)

        client, thread = connect(), threading.Thread(target=search)
        thread.start()
        for number, name in ((1, "b"), (0, "a")):
            temporary = tmp_path / "new.csv"
            temporary.write_text(versions[number])
            os.replace(temporary, table)
            provider.send_signal(signal.SIGHUP)
            commands.wait_for(provider, "reloaded titles: 1000 objects")
            assert client.kneighbors("graph search 7", 1)[1][0][0][1] == f"{name}7"
        table.write_text("id,title\na,b\na,c\n")
        provider.send_signal(signal.SIGHUP)
        commands.wait_for(provider, "ids must be unique")
        assert client.kneighbors("graph search 7", 1)[1][0][0][1] == "a7"
        ended.set()
        thread.join(60)
        table.write_text(versions[0])
        with (tmp_path / "provider.toml").open("a") as file:
            file.write('policy = { level = "none" }\n')
        provider.send_signal(signal.SIGHUP)
        commands.wait_for(provider, "reloaded titles: 1000 objects, another policy")
        with pytest.raises(ServiceError, match="not-allowed"):
            client.kneighbors("graph search 7", 1)
        provider.send_signal(signal.SIGTERM)
        assert provider.wait(60) == 0
    finally:
        ended.set()
        commands.close()
    assert not errors
    for answer in answers:  # each is of one version
        assert len({name[0] for _, name in answer}) == 1
    assert {answer[0][1][0] for answer in answers} == {"a", "b"}


def test_a_forgotten_object_is_in_no_stored_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(_provider, "_LOOK_S", 0.05)
    for name in ("north", "south"):
        folder = tmp_path / name
        (folder / "state").mkdir(parents=True)
        Identity.new().write(folder / "state/provider.pem")
        (folder / "titles.csv").write_text(f"id,title\n{name}-1,alpha\n{name}-2,beta\n")
        (folder / "provider.toml").write_text(
            f'format = 1\n[provider]\nname = "{name}"\nbroker = "https://b"\n'
            '[collections.titles]\nmetric = "edit"\n'
            'source = { file = "titles.csv", columns = ["title"], id = "id" }\n'
        )
    section = {"metric": "edit", "providers": ["north", "south"]}
    with deployed(tmp_path, {"titles": section}) as d:
        for name in ("north", "south"):
            config = ProviderConfig.read(tmp_path / name / "provider.toml")
            service = ProviderService.of(config)
            d.identities[name] = service._identity
            add_local_provider(d.broker.state, name, service._identity)
            work = service.run(d.url, d.certificate.read_text())
            d.tasks[name] = asyncio.run_coroutine_threadsafe(work, d.loop)
        d.wait("north", "south")

        def search(key):
            answer = httpx.post(
                f"{d.url}/v1/collections/titles/search",
                json={"query": "alpha", "k": 4},
                headers={"Authorization": f"Bearer {d.token}", "Idempotency-Key": key},
                verify=False,
                timeout=LIMIT_S,
            ).json()
            return answer["query_id"], [found["id"] for found in answer["neighbors"]]

        first = search("one")
        assert set(first[1]) == {"north-1", "north-2", "south-1", "south-2"}
        assert search("one") == first
        forgotten = ProviderConfig.read(tmp_path / "north/provider.toml").forgotten_file
        Forgotten.add(forgotten, "titles", ["north-1"])
        d.run(wait_for_objects(d.broker.registry, "north", 1))
        again = search("one")
        assert again[0] != first[0]
        assert set(again[1]) == {"north-2", "south-1", "south-2"}


async def wait_for_objects(registry, name, n_objects):
    while registry.links[name].collections["titles"].n_objects != n_objects:
        await asyncio.sleep(0.01)
