"""Marked texts in every column and query, searched for in all that leaves a provider or is kept."""

import logging
import tempfile
from contextlib import contextmanager

import httpx
import pytest

from fedneighbors.errors import SourceError
from fedneighbors.service import ServiceError, _provider
from fedneighbors.service._access_log import AccessLog
from fedneighbors.service._config import OfferSection
from fedneighbors.service._offers import Forgotten, OfferedObjects
from tests.processes import LIMIT_S
from tests.service.deployment import deployed

N = 40
COLUMNS = ("id", "title", "shown", "site", "secret")
QUERY = "query-canary"
SECTION = {
    "metric": "edit",
    "filters": {"site": "text"},
    "source": {"file": "titles.csv", "columns": ["title"], "id": "id"},
    "policy": {"level": "distances", "payload": ["shown"]},
}


def canary(column, row):
    return f"{column}-canary-{row:02}"


@pytest.fixture
def frames(tmp_path, monkeypatch, caplog):
    """Return the frames that providers send from here on; temporary files lie in ``tmp_path``."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    caplog.set_level(logging.DEBUG)
    frames, open_link = [], _provider.open_link

    def open_captured(*args, **options):
        connecting = open_link(*args, **options)
        enter = connecting.__aenter__

        class Captured:
            async def __aenter__(self):
                connection = await enter()
                send = connection.send

                async def keep(frame):
                    frames.append(frame)
                    await send(frame)

                connection.send = keep
                return connection

            async def __aexit__(self, *error):
                return await connecting.__aexit__(*error)

        return Captured()

    monkeypatch.setattr(_provider, "open_link", open_captured)
    return frames


@pytest.fixture
def captured(tmp_path, frames):
    """Run a deployment with marked titles."""
    lines = [",".join(canary(name, row) for name in COLUMNS) for row in range(N)]
    (tmp_path / "titles.csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    Forgotten.add(tmp_path / "forgotten", "titles", [canary("id", 3)])
    collection = {"metric": "edit", "providers": ["north"], "filters": {"site": "text"}}
    with deployed(tmp_path, {"titles": collection}) as deployment, logged(tmp_path) as log:
        offer = OfferedObjects.read(
            "north",
            "titles",
            OfferSection.model_validate(SECTION),
            tmp_path,
            secret=b"s",
            log=log,
            forgotten=tmp_path / "forgotten",
        )
        deployment.start("north", {"titles": offer})
        deployment.wait("north")
        yield deployment, offer


@contextmanager
def logged(folder):
    log = AccessLog(folder / "provider.log.sqlite")
    yield log
    log.close()


def search_with_everything(deployment, offer):
    """Run each kind of request, also those that fail."""
    site = {"site": canary("site", 7)}
    with deployment.client("titles", payload=True) as search:
        search.kneighbors([QUERY], 2)
        search.kneighbors([QUERY], 1, where=site)
    with deployment.client("titles") as search:
        for algorithm in ("baseline", "dann", "hufu+"):
            search.algorithm = algorithm
            search.kneighbors([QUERY], 2)
        search.algorithm = None
        search.count([QUERY], 3.0)
        search.count_filtered(site)
        search.radius_neighbors([canary("title", 5)], 0)
        search.explain([QUERY], 1)
        for where in ({"secret": canary("secret", 1)}, {"site": {">=": 3}}):
            with pytest.raises(ServiceError, match="invalid-query"):
                search.kneighbors([QUERY], 1, where=where)

        def fail(_):
            raise SourceError(f"the database says: {canary('secret', 2)}")

        offer.party._answer = fail
        with pytest.raises(ServiceError, match="source-failed") as caught:
            search.kneighbors([QUERY], 1)
        assert "canary" not in str(caught.value)
    described = httpx.get(f"{deployment.url}/openapi.json", verify=False, timeout=LIMIT_S)
    assert described.status_code == 200
    return httpx.get(
        f"{deployment.url}/metrics",
        headers={"Authorization": f"Bearer {deployment.token}"},
        verify=False,
        timeout=LIMIT_S,
    ).text


def find_kept(folder):
    """Return the names of files with a marked text."""
    kept = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {"broker.log.sqlite", "provider.log.sqlite", "broker.sqlite"} <= set(kept)
    return [name for name, content in kept.items() if b"canary" in content]


def test_only_declared_texts_leave_a_provider_and_none_is_kept(captured, frames, caplog, tmp_path):
    deployment, offer = captured
    metrics = search_with_everything(deployment, offer)

    sent = b"".join(frames).decode("latin-1")
    assert not [row for row in range(N) if canary("secret", row) in sent]
    assert not [row for row in range(N) if canary("site", row) in sent]
    assert not [row for row in range(N) if canary("title", row) in sent]
    shown = {row for row in range(N) if canary("shown", row) in sent}
    returned = {row for row in range(N) if canary("id", row) in sent}
    assert 0 < len(shown) <= 3
    assert shown <= returned
    assert 3 not in returned  # it is forgotten
    (tmp_path / "titles.csv").unlink()
    assert not find_kept(tmp_path)
    assert 'kind="search",outcome="source-failed"} 1.0' in metrics
    assert "canary" not in metrics
    # the provider's own log has the text of its database
    lines = {record.getMessage() for record in caplog.records if "canary" in record.getMessage()}
    assert lines == {"north: the database says: secret-canary-02"}


def test_the_error_of_a_database_stays_at_its_provider(pgvector, frames, caplog, tmp_path):
    name = pgvector.new_database(
        "CREATE TABLE texts (id text, v text)",
        "INSERT INTO texts VALUES ('a', '[1, 2]'), ('b', '[2, 3]')",
        "CREATE VIEW vectors AS SELECT id, v::vector(2) AS v FROM texts",
    )
    source = {"kind": "pgvector", "database": pgvector.url(name), "table": "vectors"}
    source |= {"id": "id", "vector": "v"}
    section = {"metric": "euclidean", "source": source, "policy": {"level": "distances"}}
    collection = {"metric": "euclidean", "providers": ["north"]}
    with deployed(tmp_path, {"vectors": collection}) as deployment, logged(tmp_path) as log:
        found = OfferSection.model_validate(section)
        offer = OfferedObjects.read("north", "vectors", found, tmp_path, secret=b"s", log=log)
        deployment.start("north", {"vectors": offer})
        deployment.wait("north")
        with deployment.client("vectors") as search:
            search.kneighbors([[1.0, 2.0]], 1)
            with pgvector.connect(name) as connection:
                connection.execute("INSERT INTO texts VALUES ('c', %s)", ["secret-canary"])
            with pytest.raises(ServiceError, match="source-failed") as caught:
                search.kneighbors([[1.0, 2.0]], 1)

    assert "canary" not in str(caught.value)
    assert b"canary" not in b"".join(frames)
    assert not find_kept(tmp_path)
    lines = {record.getMessage() for record in caplog.records if "canary" in record.getMessage()}
    assert len(lines) == 1
    assert 'type vector: "secret-canary"' in lines.pop()
