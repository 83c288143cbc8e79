"""``fedneighbors broker``, ``provider`` and ``serve``: search over a network."""

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedneighbors.cli._access_log import broker_log, provider_log
from fedneighbors.cli._console import echo, log_with_times, note_compilation
from fedneighbors.cli._operations import BrokerFile, backup, check_broker, restore, show_status
from fedneighbors.errors import FedneighborsError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from fedneighbors.service._administration import Administrator
    from fedneighbors.service._config import BrokerConfig, ProviderConfig
    from fedneighbors.service._source_config import SourceSection

broker = typer.Typer(
    no_args_is_help=True, help="Run the broker of a search service; enrol providers and users."
)
provider = typer.Typer(
    no_args_is_help=True, help="Offer collections to a broker, without an open port."
)

broker.add_typer(broker_log, name="log")
provider.add_typer(provider_log, name="log")
for group, name in ((broker, "broker"), (provider, "provider")):
    example = f"Example: [bold]fedneighbors {name} {{}} {name}.backup[/bold]"
    group.command("backup", epilog=example.format("backup"))(backup)
    group.command("restore", epilog=example.format("restore"))(restore)

broker.command("check", epilog="Example: [bold]fedneighbors broker check[/bold]")(check_broker)
broker.command("status", epilog="Example: [bold]fedneighbors broker status[/bold]")(show_status)

ProviderFile = Annotated[Path, typer.Option("--config", help="The provider's configuration.")]
_BROKER, _PROVIDER = Path("broker.toml"), Path("provider.toml")


@broker.command("serve", epilog="Example: [bold]fedneighbors broker serve --config broker.toml[/]")
def serve_broker(config: BrokerFile = _BROKER) -> None:
    """Answer users and providers on one port, until interrupted.

    A certificate is made at the first start, unless the configuration names one. Before the first
    token is made, a one-time link to the console is printed. A changed configuration needs a
    restart; the signal HUP does not reload it.
    """
    from fedneighbors.service._server import run_broker

    log_with_times()

    def show(url: str, link: str) -> None:
        echo(f"the broker answers at {url}", "green")
        if link:
            echo("open the console in a browser; the link works once, within 15 minutes:")
            echo(link)

    _run(run_broker(_read_broker(config), show))


@broker.command("admin-link", epilog="Example: [bold]fedneighbors broker admin-link[/bold]")
def admin_link(config: BrokerFile = _BROKER) -> None:
    """Print a one-time link to the console for an administrator.

    It is valid for 15 minutes. An earlier link becomes invalid.
    """
    from fedneighbors.service._server import make_link

    with _administer(config) as administrator:
        echo(make_link(administrator, administrator.config.server.url))


@broker.command(epilog="Example: [bold]fedneighbors broker enrol north[/bold]")
def enrol(
    name: Annotated[str, typer.Argument(help="Name of the provider.")],
    config: BrokerFile = _BROKER,
) -> None:
    """Print a one-time code for a provider, valid for 15 minutes.

    Give it to the provider over a channel that you trust, such as by telephone.
    """
    with _administer(config) as administrator:
        echo(str(administrator.new_code(name)))


@broker.command(epilog="Example: [bold]fedneighbors broker revoke north[/bold]")
def revoke(
    name: Annotated[str, typer.Argument(help="Name of the provider.")],
    config: BrokerFile = _BROKER,
) -> None:
    """Refuse the links of a provider until it enrols again.

    An open link ends within seconds.
    """
    with _administer(config) as administrator:
        administrator.revoke(name)
    echo(f"the key of {name} is revoked", "green")


@broker.command(epilog="Example: [bold]fedneighbors broker token alice --days 90[/bold]")
def token(
    user: Annotated[str, typer.Argument(help="Name of the user.")],
    days: Annotated[float, typer.Option(min=0.001, help="Days until the token expires.")] = 30.0,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="Allow only this, such as search:titles, count for counts in all collections, or "
            "admin to operate the broker; may be repeated. By default, all searches are allowed."
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(help="Group of the user, for policies of providers; may be repeated."),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete all tokens of the user.")
    ] = False,
    config: BrokerFile = _BROKER,
) -> None:
    """Print a new token of a user.

    It is not stored, and cannot be shown again.
    """
    with _administer(config) as administrator:
        if delete:
            echo(f"{administrator.delete_tokens(user)} tokens of {user} deleted", "green")
        else:
            rights = tuple(scope or ("search",)), tuple(group or ())
            echo(administrator.new_token(user, days, *rights))


@provider.command("enrol", epilog="Example: [bold]fedneighbors provider enrol CODE[/bold]")
def enrol_provider(
    code: Annotated[str, typer.Argument(help="The code from the operator of the broker.")],
    config: ProviderFile = _PROVIDER,
) -> None:
    """Make a signing key and enrol it at the broker.

    The key stays here. The code contains the fingerprint of the broker's certificate.
    """
    from fedneighbors.service._enrolment import enrol as enrol_key

    loaded = _read_provider(config)
    enrol_key(loaded, code)
    echo(f"{loaded.provider.name} is enrolled at {loaded.provider.broker}", "green")


@provider.command("serve", epilog="Example: [bold]fedneighbors provider serve[/bold]")
def serve_provider(config: ProviderFile = _PROVIDER) -> None:
    """Connect to the broker and answer requests, until interrupted.

    A lost link is opened again. After the signal HUP, the collections and the policies of the
    configuration are read again and replaced; other changes need a restart.
    """
    import signal
    from functools import partial

    from fedneighbors.service._enrolment import read_pin
    from fedneighbors.service._provider import ProviderService

    log_with_times()
    loaded = _read_provider(config)
    pin, address = read_pin(loaded.path(loaded.provider.certificate)), loaded.provider.broker
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the collections are being read
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cancels a query to a database
    with note_compilation(logging.getLogger("fedneighbors.service")):
        service = ProviderService.of(loaded, config)
    _run(service.run(address, pin), partial(service.reload, policies=True))


@provider.command(epilog="Example: [bold]fedneighbors provider budget[/bold]")
def budget(config: ProviderFile = _PROVIDER) -> None:
    """Print the numbers of private queries that are left.

    For each collection with a privacy budget and each of its limited users, from the provider's own
    ledger, which it makes at its first start.
    """
    loaded = _read_provider(config)
    ledger = loaded.open_ledger(must_exist=True)
    if ledger is None:
        raise ValueError(f"no collection of {config} has a table policy.privacy")
    with ledger:
        states = ledger.budgets()
    for state in states:
        section = loaded.collections.get(state.dataset)
        terms = None if section is None else section.policy.privacy
        if terms is not None:
            place = f"{state.dataset}, {state.user}" if state.user else state.dataset
            left, allowed = map(terms.count_queries, (state.left, state.allowed))
            echo(f"{place}: {left} of {allowed} private queries are left; spent {state.spent}")


@provider.command(epilog="Example: [bold]fedneighbors provider pause[/bold]")
def pause(config: ProviderFile = _PROVIDER) -> None:
    """Close the link to the broker, also after restarts, until `resume`.

    Queries that run end with an error, or without this provider where users allow it.
    """
    loaded = _read_provider(config)
    loaded.pause_file.parent.mkdir(parents=True, exist_ok=True)
    loaded.pause_file.touch()
    echo(f"{loaded.provider.name} is paused until: fedneighbors provider resume", "green")


@provider.command(epilog="Example: [bold]fedneighbors provider resume[/bold]")
def resume(config: ProviderFile = _PROVIDER) -> None:
    """Let a paused provider connect to the broker again."""
    loaded = _read_provider(config)
    loaded.pause_file.unlink(missing_ok=True)
    echo(f"{loaded.provider.name} is not paused", "green")


@provider.command("key", epilog="Example: [bold]fedneighbors provider key >> keys.toml[/bold]")
def show_key(config: ProviderFile = _PROVIDER) -> None:
    """Print the key for which users seal queries to this provider.

    Give it to users over a channel that you trust, not through the broker.
    """
    from fedneighbors.service._enrolment import read_key
    from fedneighbors.service._sealed import make_sealing_key

    loaded = _read_provider(config)
    identity = read_key(loaded.path(loaded.provider.key))
    typer.echo(f'"{loaded.provider.name}" = "{make_sealing_key(identity.private).hex()}"')


@provider.command(
    epilog="Example: [bold]fedneighbors provider snapshot patients patients.arrow[/bold]"
)
def snapshot(
    collection: Annotated[str, typer.Argument(help="Name of the collection.")],
    out: Annotated[Path, typer.Argument(help="Arrow file, which is replaced.")],
    config: ProviderFile = _PROVIDER,
) -> None:
    """Write the result of a collection's SQL query into a file.

    A provider can offer the file in place of the database. Forgotten objects are left out.
    """
    from fedneighbors.service._loading import Forgotten, write_snapshot

    loaded = _read_provider(config)
    source = _find_loaded(loaded, collection)
    left_out = Forgotten.read(loaded.forgotten_file, collection)
    n_rows = write_snapshot(source, loaded.folder, out, forgotten=left_out)
    echo(f"{n_rows} rows of {collection} are in {out}", "green")
    echo(f'to offer them: source = {{ file = "{out}", id = "{source.id}" }}')


@provider.command(epilog="Example: [bold]fedneighbors provider forget patients p-117[/bold]")
def forget(
    collection: Annotated[str, typer.Argument(help="Name of the collection.")],
    names: Annotated[list[str], typer.Argument(help="Names of the objects.")],
    config: ProviderFile = _PROVIDER,
) -> None:
    """Leave out objects, even if their source still has them.

    A running provider reads its collections again at once. Digests of the names are kept.
    """
    from fedneighbors.service._loading import Forgotten

    loaded = _read_provider(config)
    if _find_loaded(loaded, collection).id is None:
        raise ValueError(f"the objects of {collection} have no names; set id in its source")
    n_new = Forgotten.add(loaded.forgotten_file, collection, names)
    echo(f"{n_new} names of {collection} are forgotten from the next second on", "green")
    echo("The broker removes answers that it stores for retries. What remains: the rows of the")
    echo("source and of earlier snapshots, which you should delete; answers that were given.")


@provider.command(epilog="Example: [bold]fedneighbors provider check[/bold]")
def check(config: ProviderFile = _PROVIDER) -> None:
    """Read the configuration and all collections, without a broker.

    Prints the objects of each collection, or the score of its voter, or its first error; and how
    many cells are outside of the schema. Files for the broker's evidence must be readable.
    """
    import logging

    from fedneighbors.secure_sum._keys import Identity
    from fedneighbors.service._offers import OfferedObjects
    from fedneighbors.service._voter import Voter

    logging.getLogger("fedneighbors").addHandler(logging.NullHandler())  # notes are printed here
    loaded = _read_provider(config)
    key = loaded.path(loaded.provider.key)
    secret = Identity.read(key).private if key.is_file() else None
    failed = False
    if loaded.attestation is not None:
        try:
            loaded.attestation.check_files(loaded.folder)
        except FedneighborsError as error:
            failed = True
            echo(f"attestation: {error}", "red")
    for name, section in loaded.collections.items():
        try:
            found = OfferedObjects.read(
                loaded.provider.name,
                name,
                section,
                loaded.folder,
                secret=secret or b"",
                forgotten=loaded.forgotten_file,
            )
        except (FedneighborsError, ValueError) as error:
            failed = True
            echo(f"{name}: {error}", "red")
            continue
        offer = found.offer
        filters = f", filters {', '.join(offer.filters)}" if offer.filters else ""
        epoch = f", epoch {found.epoch}" if secret and found.epoch else ""  # needs the key
        if isinstance(found.party, Voter):
            score, n_rows = found.party.score, found.party.n_held_out
            echo(f"{name}: votes, balanced accuracy {score:.3f} on {n_rows} held-out rows{epoch}")
        else:
            width = f" of {offer.n_columns} columns" if offer.n_columns else ""
            echo(f"{name}: {offer.n_objects} objects{width}, {offer.metric}{filters}{epoch}")
        for note in found.notes:
            echo(f"  {note}", "yellow")
        for column, example in found.examples.items():
            echo(f"  an example from your rows, column {column!r}: {example!r}", "yellow")
    if failed:
        raise typer.Exit(1)


def serve(
    demo: Annotated[
        bool, typer.Option("--demo", help="Required: `broker serve` runs a configured broker.")
    ] = False,
    listen: Annotated[str, typer.Option(help="Host and port.")] = "127.0.0.1:8080",
) -> None:
    """Run a broker and three hospitals with real patients on this machine.

    442 diabetes patients are split over three hospitals. Nothing is kept.
    """
    import tempfile

    from fedneighbors.service._server import run_demo

    if not demo:
        raise typer.BadParameter("pass --demo, or use `fedneighbors broker serve`")
    with tempfile.TemporaryDirectory() as folder:
        _run(run_demo(Path(folder), listen, _print_demo))


def doctor(
    target: Annotated[
        str, typer.Argument(help="Address of a broker, or a provider's configuration.")
    ] = str(_PROVIDER),
    certificate: Annotated[
        Path | None, typer.Option(help="Certificate of the broker at the address (PEM).")
    ] = None,
) -> None:
    """Check each hop to a broker, and name the one that fails.

    The line of a failed hop says what to do. A provider that runs is not disturbed. A user's token
    is checked if FEDNEIGHBORS_TOKEN has one. The exit code is 1 if a check failed. `broker check`
    reads the broker's own configuration.
    """
    import os

    from fedneighbors.service._doctor import Visitor, examine

    if target.startswith(("http://", "https://")):
        token = os.environ.get("FEDNEIGHBORS_TOKEN", "")
        visitor = Visitor(target.rstrip("/"), certificate, token)
    else:
        visitor = Visitor.of(_read_provider(Path(target)))
    has_failed = False
    for hop in examine(visitor):
        typer.echo(str(hop))
        has_failed |= not hop.is_ok
    if has_failed:
        raise typer.Exit(1)


def _print_demo(url: str, token: str, link: str) -> None:
    echo(f"a broker and the hospitals north, east and south run at {url}", "green")
    echo(f"open the console in a browser; the link works once:\n\n{link}\n")
    echo("three commands to try in another terminal:\n")
    query = '{"age_years": 52, "bmi_kg_m2": 27.5, "pressure_mmhg": 95, "glucose_mg_dl": 90}'
    options = '"k": 3, "where": {"age_years": {">=": 50}}, "payload": true'
    echo(f"curl -H 'Authorization: Bearer {token}' {url}/v1/collections\n")
    echo(
        f"curl -H 'Authorization: Bearer {token}' {url}/v1/collections/patients/search "
        f"-d '{{\"query\": {query}, {options}}}'\n"
    )
    search = f"RemoteNeighbors('{url}', collection='patients', token='{token}')"
    search += f".kneighbors([{query}], 3)".replace('"', "'")
    echo(f'python -c "from fedneighbors.service import RemoteNeighbors; print({search})"\n')
    echo("a distance is the mean difference in the columns, from 0 to 1. Ctrl-C ends.")


def _find_loaded(config: "ProviderConfig", collection: str) -> "SourceSection":
    """Return the source of a collection that is loaded."""
    from fedneighbors.service._source_config import ModelSection, PushedSection

    if collection not in config.collections:
        raise ValueError(f"expected one of {', '.join(config.collections)}, got {collection!r}")
    source = config.collections[collection].source
    if isinstance(source, ModelSection):
        raise ValueError(f"collection {collection} has a voter and no objects")
    if isinstance(source, PushedSection):
        raise ValueError(f"the objects of {collection} stay in a database: change or copy it there")
    return source


def _read_broker(path: Path) -> "BrokerConfig":
    from fedneighbors.service._config import BrokerConfig

    return BrokerConfig.read(path)


def _read_provider(path: Path) -> "ProviderConfig":
    from fedneighbors.service._config import ProviderConfig

    return ProviderConfig.read(path)


@contextlib.contextmanager
def _administer(path: Path) -> "Iterator[Administrator]":
    """Open the broker's state and log for changes."""
    from fedneighbors.service._access_log import AccessLog
    from fedneighbors.service._administration import COMMAND_LINE, Administrator
    from fedneighbors.service._state import open_state

    config = _read_broker(path)
    state, fingerprint = open_state(config)
    with (
        contextlib.closing(state),
        contextlib.closing(AccessLog(config.path(config.log))) as log,
    ):
        yield Administrator(COMMAND_LINE, config, state, log, fingerprint)


def _run(
    service: "Coroutine[Any, Any, None]",
    reload: "Callable[[], Coroutine[Any, Any, bool]] | None" = None,
) -> None:
    """Run a service until an interrupt or a signal to end.

    The signal HUP reloads it.
    """
    import asyncio
    import signal

    async def run() -> None:
        task = asyncio.ensure_future(service)
        loop, reloads = asyncio.get_running_loop(), set[asyncio.Task[bool]]()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        if reload is not None:  # the set keeps the tasks from being collected
            loop.add_signal_handler(signal.SIGHUP, lambda: reloads.add(loop.create_task(reload())))
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
