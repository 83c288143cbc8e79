"""Marked texts in every column and query, searched for in all that leaves a provider or is kept."""

import logging
import tempfile

import httpx
import pytest

from fedneighbors.errors import SourceError
from fedneighbors.service import ServiceError, _provider
from fedneighbors.service._access_log import AccessLog
from fedneighbors.service._config import OfferSection
from fedneighbors.service._offers import Forgotten, OfferedObjects
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
def captured(tmp_path, monkeypatch, caplog):
    """Run a deployment; return it, and the frames that its provider sends."""
    lines = [",".join(canary(name, row) for name in COLUMNS) for row in range(N)]
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "titles.csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
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
    collection = {"metric": "edit", "providers": ["north"], "filters": {"site": "text"}}
    with deployed(tmp_path, {"titles": collection}) as deployment:
        log = AccessLog(tmp_path / "provider.log.sqlite")
        section = OfferSection.model_validate(SECTION)
        Forgotten.add(tmp_path / "forgotten", "titles", [canary("id", 3)])
        offer = OfferedObjects.read(
            "north",
            "titles",
            section,
            tmp_path,
            secret=b"s",
            log=log,
            forgotten=tmp_path / "forgotten",
        )
        deployment.start("north", {"titles": offer})
        deployment.wait("north")
        yield deployment, frames, offer
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
    assert httpx.get(f"{deployment.url}/openapi.json", verify=False).status_code == 200
    return httpx.get(
        f"{deployment.url}/metrics",
        headers={"Authorization": f"Bearer {deployment.token}"},
        verify=False,
    ).text


def test_only_declared_texts_leave_a_provider_and_none_is_kept(captured, caplog, tmp_path):
    deployment, frames, offer = captured
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
    kept = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    del kept["titles.csv"]
    assert {"broker.log.sqlite", "provider.log.sqlite", "broker.sqlite"} <= set(kept)
    assert not [name for name, content in kept.items() if b"canary" in content]
    assert 'kind="search",outcome="source-failed"} 1.0' in metrics
    assert "canary" not in metrics
    # the provider's own log has the text of its database
    lines = {record.getMessage() for record in caplog.records if "canary" in record.getMessage()}
    assert lines == {"north: 'the database says: secret-canary-02'"}
