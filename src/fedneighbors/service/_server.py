"""Servers: the broker on its port, and a demonstration with three providers."""

import asyncio
import contextlib
import csv
import logging
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import uvicorn

from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._schema_columns import NumericColumn
from fedneighbors.errors import PortInUse
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service._administration import COMMAND_LINE, Administrator
from fedneighbors.service._app import MAX_PAGE, make_app
from fedneighbors.service._broker import Broker
from fedneighbors.service._config import BrokerConfig, OfferSection
from fedneighbors.service._limits import LimitedHttp, LimitedWebSocket, reduce_tls_buffers
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.service._provider import ProviderService
from fedneighbors.service._state import BrokerState, StateFailed, open_state, server_files
from fedneighbors.service._tls import pinned_context
from fedneighbors.service._tsm import Attester

log = logging.getLogger(__name__)
_CLOSE_S = 0.1  # time to send the last answers
_ASK_DAYS = 1 / 1440  # for one question
_HANG_UP = (
    "SIGHUP does not reload a broker: to read a changed configuration or certificate, run "
    "`fedneighbors broker check` and restart the broker"
)


@asynccontextmanager
async def running_broker(config: BrokerConfig) -> AsyncIterator[tuple[Broker, str]]:
    """Run the broker's server during the block.

    At the end it answers the running queries, and then stops.

    Parameters
    ----------
    config : BrokerConfig
        Configuration; port 0 for any free port.

    Yields
    ------
    broker : Broker
        The broker.
    url : str
        Its address on this machine.

    Raises
    ------
    EvidenceMissing
        If a collection has the trust mode ``"enclave"``, and this machine makes no evidence.
    PortInUse
        If another program uses the port.
    """
    attester = Attester.of(config)
    state, fingerprint = open_state(config)
    host, port = config.server.address
    certificate, key = server_files(config)
    broker = Broker(config, state, fingerprint)
    broker.attester = attester
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(broker),
            log_config=None,  # uvicorn's would enable loggers that their packages disable
            log_level="warning",
            ssl_certfile=key and certificate,
            ssl_keyfile=key,
            http=LimitedHttp,
            ws=LimitedWebSocket,
            ws_ping_interval=config.server.heartbeat_s,
            ws_ping_timeout=3 * config.server.heartbeat_s,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=1,
        )
    )
    reduce_tls_buffers()
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    with _listen(host, port) as listener:
        task = asyncio.create_task(server.serve([listener]))
        while not server.started:
            if task.done():
                task.result()
            await asyncio.sleep(0.01)
        watch = asyncio.create_task(_reject_revoked(broker, config.server.heartbeat_s))
        try:
            scheme = "https" if config.server.tls else "http"
            yield broker, f"{scheme}://{host or '127.0.0.1'}:{listener.getsockname()[1]}"
        finally:
            watch.cancel()
            await broker.drain(config.queries.deadline_s)
            await _close_connections(server)
            server.should_exit = True
            await task
            state.close()
            broker.log.close()


async def _close_connections(server: uvicorn.Server) -> None:
    """Accept no more connections, and close the open ones.

    Uvicorn would wait for clients that are idle, and fails for a WebSocket that is being closed.
    """
    for listener in server.servers:
        listener.close()
    await asyncio.sleep(_CLOSE_S)  # for the last answers
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    while server.server_state.connections:
        await asyncio.sleep(0.01)


async def _reject_revoked(broker: Broker, seconds: float) -> None:
    """Close links of revoked providers at intervals."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await broker.registry.reject_revoked()
        except StateFailed as error:  # the file may be locked for a moment
            log.error("revoked providers were not looked up: %s", error)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # without the protocol, asyncio does not turn off Nagle's algorithm, which costs 40 ms an answer
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(512)
        return listener
    except OSError as error:
        listener.close()
        if port and error.errno == 98:
            raise PortInUse(host, port) from None
        raise


def make_link(administrator: Administrator, url: str) -> str:
    """Return a one-time link to the console of a broker."""
    return f"{url}/console/sign-in?link={administrator.new_link()}"


def find_connected(config: BrokerConfig, state: BrokerState) -> set[str] | None:
    """Ask a running broker which providers are connected; None if none answers.

    The token for this question, whose user has a random name, is deleted afterwards.
    """
    (host, port), (certificate, _) = config.server.address, server_files(config)
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host.strip("[]"), host)
    place = f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}"
    verify = pinned_context(certificate.read_text("ascii")) if certificate else True
    user = f"broker status {secrets.token_hex(8)}"
    token = state.new_token(user, _ASK_DAYS, ("count",))
    try:
        response = httpx.get(
            f"{'https' if config.server.tls else 'http'}://{place}/v1/providers?limit={MAX_PAGE}",
            headers={"Authorization": f"Bearer {token}"},
            verify=verify,
            trust_env=False,
        )
        listed = response.raise_for_status().json()["providers"]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError):
        return None
    finally:
        state.delete_tokens(user)
    return {one["name"] for one in listed if one["connected_since"] is not None}


def _make_link(broker: Broker, url: str) -> str:
    return make_link(Administrator.of(COMMAND_LINE, broker), url)


async def run_broker(config: BrokerConfig, on_ready: Callable[[str, str], None]) -> None:
    """Run the broker until cancelled.

    The signal HUP changes nothing; its line in the log says what to do instead.

    Parameters
    ----------
    config : BrokerConfig
        Configuration.
    on_ready : callable
        Called with the broker's address and, before the first token is made, with a one-time link
        to the console, otherwise with an empty text.
    """
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, log.warning, _HANG_UP)
    async with running_broker(config) as (broker, url):
        on_ready(url, "" if broker.state.has_tokens else _make_link(broker, url))
        await asyncio.Event().wait()


HOSPITALS = ("north", "east", "south")
_DEMO_COLUMNS = {
    "age_years": ("age", 18, 80), "bmi_kg_m2": ("bmi", 15, 45),
    "pressure_mmhg": ("bp", 60, 140), "glucose_mg_dl": ("s6", 50, 130),
}  # fmt: skip
"""Names in the data set, and ranges, of the columns of the demonstration."""

_DEMO = {"metric": "tabular", "schema": "schema.toml", "filters": {"age_years": "number"}}


def write_demo(folder: Path) -> dict[str, OfferSection]:
    """Write 442 diabetes patients as files of three hospitals, and their schema.

    Returns
    -------
    dict of str to OfferSection
        The collection of each hospital.
    """
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)
    cells = bunch.data[:, [bunch.feature_names.index(one) for one, *_ in _DEMO_COLUMNS.values()]]
    columns = [NumericColumn(n, low, high, "keep") for n, (_, low, high) in _DEMO_COLUMNS.items()]
    (folder / "schema.toml").write_text(Schema(tuple(columns)).to_toml())
    sections = {}
    for position, hospital in enumerate(HOSPITALS):
        with (folder / f"{hospital}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", *_DEMO_COLUMNS])
            for row in range(position, len(cells), len(HOSPITALS)):
                writer.writerow([f"patient-{row}", *cells[row].tolist()])
        sections[hospital] = OfferSection.model_validate(
            {
                **_DEMO,
                "source": {"file": f"{hospital}.csv", "id": "id"},
                "policy": {"level": "distances", "payload": [*_DEMO_COLUMNS]},  # public data
            }
        )
    return sections


async def run_demo(folder: Path, listen: str, on_ready: Callable[[str, str, str], None]) -> None:
    """Run a broker and three hospitals in this process until cancelled.

    Parameters
    ----------
    folder : path
        Empty folder for files and state.
    listen : str
        Host and port.
    on_ready : callable
        Called with the broker's address, a token of a user, and a one-time link to the console.
    """
    sections = write_demo(folder)
    config = BrokerConfig.model_validate(
        {
            "format": 1,
            "folder": folder,
            "server": {"listen": listen, "tls": False},
            "collections": {"patients": {**_DEMO, "providers": HOSPITALS}},
        }
    )
    async with running_broker(config) as (broker, url), asyncio.TaskGroup() as tasks:
        for hospital, section in sections.items():
            identity = Identity.new()
            add_local_provider(broker.state, hospital, identity)
            secret = identity.private
            offered = OfferedObjects.read(hospital, "patients", section, folder, secret=secret)
            service = ProviderService(hospital, identity, {"patients": offered})
            tasks.create_task(service.run(url, ""))
        await broker.registry.wait_for(HOSPITALS, 30.0)
        on_ready(url, broker.state.new_token("demo", 1.0), _make_link(broker, url))


def add_local_provider(state: BrokerState, provider: str, identity: Identity) -> None:
    """Add a provider whose key is on this machine."""
    code, key = state.new_code(provider, b""), identity.public
    state.enrol(provider, code.secret, key, identity.sign(code.content(provider, key)))
