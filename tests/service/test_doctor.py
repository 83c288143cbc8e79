"""Each hop to a broker fails for real on loopback, and the doctor names it."""

import asyncio
import contextlib
import email.utils
import ssl
import time

import pytest
from typer.testing import CliRunner
from websockets.asyncio.server import serve
from websockets.datastructures import Headers
from websockets.http11 import Response

from fedneighbors.cli._main import app
from fedneighbors.federation._messages import encode
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service import RemoteNeighbors, ServiceError
from fedneighbors.service._config import ProviderConfig
from fedneighbors.service._doctor import Visitor, examine
from fedneighbors.service._enrolment import enrol
from fedneighbors.service._messages import VERSION, Challenge
from fedneighbors.service._provider import ConnectionRejected, ProviderService
from fedneighbors.service._tls import make_certificate
from tests.service.deployment import deployed, offered

SECTION = {"words": {"metric": "edit", "providers": ["north"]}}
PROVIDER = """
format = 1
[provider]
name = "north"
broker = "URL"
[collections.words]
metric = "edit"
source = { file = "words.txt" }
"""
HOPS = ["DNS", "TCP", "proxy", "TLS", "fingerprint", "clock", "link", "version", "identity"]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with deployed(tmp_path_factory.mktemp("broker"), SECTION) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def path(deployment, tmp_path):
    """Return the configuration of a provider that is enrolled."""
    (tmp_path / "words.txt").write_text("alpha\nbeta\n", encoding="utf-8")
    written = tmp_path / "provider.toml"
    written.write_text(PROVIDER.replace("URL", deployment.url), encoding="utf-8")
    state, fingerprint = deployment.broker.state, deployment.broker.registry._fingerprint
    enrol(ProviderConfig.read(written), str(state.new_code("north", fingerprint)))
    return written


def change(path, *changes):
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def check(path):
    return list(examine(Visitor.of(ProviderConfig.read(path))))


def fails(hops, name, message):
    """Check that the hops before a name are ok, that it failed, and that none follows."""
    network = [hop for hop in hops if hop.name != "source"]
    assert [hop.name for hop in network] == HOPS[: HOPS.index(name) + 1]
    assert [hop.is_ok for hop in network] == [True] * (len(network) - 1) + [False]
    assert message in network[-1].text
    assert str(network[-1]).startswith(f"{name:<12} failed  ")


def test_a_healthy_provider_passes_every_hop_and_its_link_stays(deployment, path):
    deployment.identities["north"] = Identity.read(path.parent / "state/provider.pem")
    words = {"words": offered("north", "words", "edit", ["alpha"])}
    task = deployment.start("north", words)
    deployment.wait("north")
    link = deployment.broker.registry.links["north"]
    hops = check(path)
    assert [hop.name for hop in hops] == [*HOPS, "policy", "source"]
    assert all(hop.is_ok for hop in hops)
    assert "words: 2 objects" in hops[-1].text
    assert deployment.broker.registry.links["north"] is link
    assert not task.done()
    deployment.stop("north")


def test_a_name_without_an_address(path, deployment):
    change(path, (deployment.url, "https://broker.invalid"))
    fails(check(path), "DNS", "'broker.invalid' has no address")


def test_a_port_without_a_server(path, deployment):
    change(path, (deployment.url, "https://127.0.0.1:9"))
    fails(check(path), "TCP", "the broker does not accept connections at 127.0.0.1:9")


class ConnectProxy:
    """A proxy with CONNECT that answers with a status line, and then passes bytes on."""

    def __init__(self, status):
        self.status, self.requests = status, []

    async def start(self):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader, writer):
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.requests.append(request)
        writer.write(f"HTTP/1.1 {self.status}\r\n\r\n".encode())
        if not self.status.startswith("200"):
            writer.close()
            return
        host, _, port = request.split()[1].rpartition(":")
        up, down = await asyncio.open_connection(host, int(port))
        await asyncio.gather(self._pass(reader, down), self._pass(up, writer))

    async def _pass(self, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("407 Proxy Authentication Required", "asks for a name and password"),
        ("403 Forbidden", "to allow CONNECT, or set NO_PROXY=127.0.0.1"),
    ],
)
def test_a_proxy_that_refuses(deployment, path, monkeypatch, status, message):
    proxy = deployment.run(ConnectProxy(status).start())
    monkeypatch.setenv("HTTPS_PROXY", proxy.replace("//", "//me:secret@"))
    hops = check(path)
    fails(hops, "proxy", message)
    assert not any("secret" in hop.text for hop in hops)


def test_a_proxy_that_is_down(deployment, path, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    fails(check(path), "TCP", "the proxy does not accept connections at 127.0.0.1:9")


def test_all_of_the_service_passes_a_proxy(deployment, path, monkeypatch):
    proxy = ConnectProxy("200 OK")
    address = deployment.run(proxy.start())
    monkeypatch.setenv("HTTPS_PROXY", address.replace("//", "//me:secret@"))
    hops = check(path)
    assert all(hop.is_ok for hop in hops)
    assert f"{address} passes connections on" in [hop.text for hop in hops][2]
    assert all("Proxy-Authorization: Basic" in request for request in proxy.requests)
    state, fingerprint = deployment.broker.state, deployment.broker.registry._fingerprint
    n_requests = len(proxy.requests)
    enrol(ProviderConfig.read(path), str(state.new_code("north", fingerprint)))
    assert len(proxy.requests) == n_requests + 2
    deployment.identities["north"] = Identity.read(path.parent / "state/provider.pem")
    deployment.start("north", {"words": offered("north", "words", "edit", ["alpha"])})
    deployment.wait("north")
    assert len(proxy.requests) == n_requests + 3
    assert deployment.client("words").kneighbors("alpha", 1)[1] == [[("north", "0")]]
    assert len(proxy.requests) == n_requests + 4
    deployment.stop("north")


def test_the_service_works_behind_a_proxy_that_ends_tls(tmp_path):
    context, (relayed, folder) = certified(tmp_path), (ConnectProxy("200 OK"), tmp_path / "north")
    server = {"listen": "127.0.0.1:0", "tls": False, "certificate": str(tmp_path / "other.crt")}
    folder.mkdir()
    (folder / "words.txt").write_text("alpha\nbeta\n", encoding="utf-8")
    with deployed(tmp_path, SECTION, server=server) as running:
        port = int(running.url.rpartition(":")[2])

        async def pass_on(reader, writer):
            up, down = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(relayed._pass(reader, down), relayed._pass(up, writer))

        listener = running.run(asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context))
        url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        (folder / "provider.toml").write_text(PROVIDER.replace("URL", url), encoding="utf-8")
        config = ProviderConfig.read(folder / "provider.toml")
        fingerprint = running.broker.registry._fingerprint
        enrol(config, str(running.broker.state.new_code("north", fingerprint)))
        assert all(hop.is_ok for hop in check(folder / "provider.toml"))
        running.identities["north"] = Identity.read(folder / "state/provider.pem")
        running.certificate = tmp_path / "other.crt"
        running.start("north", {"words": offered("north", "words", "edit", ["alpha"])}, url=url)
        running.wait("north")
        options = {"collection": "words", "token": running.token}
        with RemoteNeighbors(url, certificate=tmp_path / "other.crt", **options) as search:
            assert (
                search.kneighbors(["alpha", "b"], 1, return_distance=False)
                == [[("north", "0")]] * 2
            )


def serve_here(deployment, handler, *, date=None, status=200, context=None):
    """Return the port of a server that answers HTTP, and links with a handler."""

    def answer(_, request):
        if request.path.startswith("/v1/link") and status == 200:
            return None
        headers = {"Date": email.utils.formatdate(date or time.time(), usegmt=True)}
        code = 200 if request.path == "/healthz" else status
        return Response(code, "", Headers(headers), b"{}")

    async def start():
        server = await serve(handler, "127.0.0.1", 0, process_request=answer, ssl=context)
        return server.sockets[0].getsockname()[1]

    return deployment.run(start())


async def do_nothing(_):
    pass


def test_a_server_without_tls(deployment, path):
    port = serve_here(deployment, do_nothing)
    change(path, (deployment.url, f"https://127.0.0.1:{port}"))
    fails(check(path), "TLS", "the server does not answer with TLS")


def certified(folder):
    make_certificate(folder / "other.crt", folder / "other.key", [])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "other.crt", folder / "other.key")
    return context


def test_another_certificate(deployment, path, tmp_path):
    port = serve_here(deployment, do_nothing, context=certified(tmp_path))
    change(path, (deployment.url, f"https://127.0.0.1:{port}"))
    fails(check(path), "fingerprint", "a proxy inspects TLS")


def test_a_provider_that_is_not_enrolled(path):
    (path.parent / "state/broker.crt").unlink()
    fails(check(path), "fingerprint", "enrol: fedneighbors provider enrol CODE")


def test_a_user_without_the_certificate(deployment):
    hops = list(examine(Visitor(deployment.url)))
    assert not hops[-1].is_ok
    fails(hops, "fingerprint", "pass --certificate with the broker's file")


@pytest.mark.parametrize(("seconds", "word"), [(3600, "behind"), (-3600, "ahead of")])
def test_a_wrong_clock(deployment, path, seconds, word):
    port = serve_here(deployment, do_nothing, date=time.time() + seconds)
    change(path, (deployment.url, f"http://127.0.0.1:{port}"))
    hops = check(path)
    names = [hop.name for hop in hops if hop.name != "source"]
    assert names == ["DNS", "TCP", "proxy", "TLS", "clock"]
    assert not hops[4].is_ok
    assert f"s {word} the broker" in hops[4].text


def test_a_server_that_passes_no_websockets(deployment, path):
    port = serve_here(deployment, do_nothing, status=404)
    change(path, (deployment.url, f"http://127.0.0.1:{port}"))
    hop = check(path)[5]
    assert (hop.name, hop.is_ok) == ("link", False)
    assert "must pass the headers Upgrade and Connection" in hop.text


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (encode(Challenge(VERSION + 1, bytes(32))), "upgrade fedneighbors here"),
        (encode(Challenge(VERSION - 1, bytes(32))), "upgrade the broker"),
        (b"another protocol", "of another version"),
    ],
    ids=["newer", "older", "other"],
)
def test_a_broker_of_another_version(deployment, path, frame, message):
    async def greet(connection):
        await connection.send(frame)
        await connection.wait_closed()

    url = f"http://127.0.0.1:{serve_here(deployment, greet)}"
    change(path, (deployment.url, url))
    hop = check(path)[6]
    assert (hop.name, hop.is_ok) == ("version", False)
    assert message in hop.text
    if message.startswith("upgrade"):
        service = ProviderService("north", Identity.new(), {})
        with pytest.raises(ConnectionRejected, match=message):
            deployment.run(service.run(url, ""))


def test_a_key_that_is_revoked_or_lost(deployment, path):
    deployment.broker.state.revoke("north")
    fails(check(path), "identity", "ask the operator for a code for 'north' and enrol again")
    (path.parent / "state/provider.pem").unlink()
    fails(check(path), "identity", "no key in")


def test_another_metric_than_the_brokers(path):
    change(path, ('metric = "edit"', 'metric = "jaccard"'))
    hops = check(path)
    assert [hop.name for hop in hops] == [*HOPS, "policy", "source"]
    assert [hop.is_ok for hop in hops] == [True] * len(HOPS) + [False, True]
    assert "'metric' differs" in hops[-2].text


def test_a_missing_source_is_found_although_the_network_fails(path, deployment):
    (path.parent / "words.txt").unlink()
    change(path, (deployment.url, "https://127.0.0.1:9"))
    hops = check(path)
    fails(hops, "TCP", "does not accept")
    assert (hops[-1].name, hops[-1].is_ok) == ("source", False)
    assert "words.txt" in hops[-1].text


@pytest.mark.parametrize("days", [1, -1])
def test_a_users_token_is_checked(deployment, days):
    token = deployment.broker.state.new_token("alice", days)
    hops = list(examine(Visitor(deployment.url, deployment.certificate, token)))
    if days > 0:
        assert [hop.name for hop in hops] == HOPS
        assert hops[-1].text == "the token is valid, for the collections: words"
    else:
        fails(hops, "identity", "the token is wrong or has expired")
        with pytest.raises(ServiceError, match="unauthorized"):
            deployment.client("words", token=token).kneighbors("a", 1)


@pytest.mark.parametrize("is_healthy", [True, False])
def test_the_command_prints_a_line_for_each_hop(path, is_healthy):
    if not is_healthy:
        (path.parent / "words.txt").unlink()
    done = CliRunner().invoke(app, ["doctor", str(path)])
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [*HOPS, "policy", "source"]
    assert [line.split()[1] for line in lines[:-1]] == ["ok"] * 10
    assert lines[-1].split()[1] == ("ok" if is_healthy else "failed")
    assert done.exit_code == (0 if is_healthy else 1)
