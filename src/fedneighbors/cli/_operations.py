"""``fedneighbors broker backup``, ``restore``, ``check`` and ``status``, and ``bench``."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from fedneighbors.cli._console import echo, print_warning, progress_bar
from fedneighbors.cli._search import Certificate, Keys, Purpose, read_keys, read_token
from fedneighbors.errors import FedneighborsError

_CONFIG_HELP = "The configuration; broker.toml or provider.toml by default."
BrokerFile = Annotated[Path, typer.Option("--config", help="The broker's configuration (TOML).")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help=_CONFIG_HELP)]


def backup(
    context: typer.Context,
    archive: Annotated[Path, typer.Argument(help="The archive, which must not exist.")],
    config: ConfigFile = None,
) -> None:
    """Save configuration, keys, ledgers, log and other state in one file.

    The service may run. Keep the file secret: it has private keys. Objects are not in it. Prints
    the digest of the file, for the restoration.
    """
    from fedneighbors.service._backup import write_backup

    role, path = _find_role(context, config)
    digest = write_backup(role, path, archive)
    typer.echo(digest)
    place = [] if config is None else ["--config", str(config)]
    words = ["fedneighbors", role, "restore", str(archive), "--digest", digest, *place]
    print_warning(
        f"keep this digest elsewhere than the archive; to restore it: {shlex.join(words)}"
    )


def restore(
    context: typer.Context,
    archive: Annotated[Path, typer.Argument(help="The archive.")],
    digest: Annotated[
        str, typer.Option(help="Digest that the backup printed, to detect another archive.")
    ] = "",
    config: ConfigFile = None,
) -> None:
    """Write the files of a backup to the paths of its configuration.

    No file is replaced: if one exists, nothing is written. Private queries are refused until
    `fedneighbors ledger reconcile`.
    """
    from fedneighbors.service._backup import read_digest, restore_backup

    role, path = _find_role(context, config)
    ledgers = restore_backup(role, archive, path, digest=digest)
    echo(f"the {role} of {path} is restored", "green")
    if not digest:
        found = read_digest(archive)
        print_warning(f"compare the digest of the archive with that of the backup: {found}")
    echo("repeat what was done after the backup: revoked keys, deleted tokens, forgotten names")
    for ledger in ledgers:
        echo(
            "private queries are refused: lower max_queries by those after the backup, then "
            f"fedneighbors ledger reconcile {ledger}"
        )


def show_status(config: BrokerFile = Path("broker.toml")) -> None:
    """List enrolled and connected providers of collections, and users with tokens.

    The running broker is asked who is connected, with a token that is deleted at once.
    """
    import contextlib
    import time

    from fedneighbors.service._config import BrokerConfig
    from fedneighbors.service._server import find_connected
    from fedneighbors.service._state import open_state

    loaded = BrokerConfig.read(config)
    with contextlib.closing(open_state(loaded)[0]) as state:
        keys, tokens = {one.name: one for one in state.providers()}, state.tokens()
        connected = find_connected(loaded, state)
    for name, section in loaded.collections.items():
        echo(f"{name}: {section.metric}, {section.algorithm}")
        for party in section.providers:
            found = keys.get(party)
            text = "not enrolled" if found is None else f"enrolled, key {found.key.hex()[:16]}"
            if connected is not None:
                text += ", connected" if party in connected else ", not connected"
            echo(f"  {party}: {'revoked' if found and found.is_revoked else text}")
    if connected is None:
        print_warning(
            f"no broker with this state answers at {loaded.server.url}, so it is unknown who is "
            "connected; fedneighbors broker serve starts one"
        )
    for token in tokens:
        text = f"user {token.user.name}: a token for {', '.join(token.user.scopes)}"
        day = time.strftime("%Y-%m-%d", time.gmtime(token.expires))
        echo(f"{text}, {'expired' if token.expires < time.time() else f'until {day}'}")


def check_broker(config: BrokerFile = Path("broker.toml")) -> None:
    """Read the configuration and the state, without serving.

    Prints for each collection its metric, filters and enrolled providers, or its first error.
    Nothing is made or changed. `doctor` checks the way to a broker that runs.
    """
    import contextlib

    from fedneighbors.service._broker import BrokerCollection
    from fedneighbors.service._config import BrokerConfig
    from fedneighbors.service._state import BrokerState, server_files
    from fedneighbors.service._tls import read_fingerprint
    from fedneighbors.service._tsm import Attester

    loaded, enrolled = BrokerConfig.read(config), set[str]()
    certificate, key = server_files(loaded)
    if certificate is not None and (certificate.exists() or loaded.server.certificate):
        read_fingerprint(certificate)
        if key is not None:
            key.read_bytes()
    if loaded.path(loaded.state).exists():
        with contextlib.closing(BrokerState(loaded.path(loaded.state))) as state:
            enrolled = {one.name for one in state.providers() if not one.is_revoked}
    Attester.of(loaded)
    has_failed = False
    for name, section in loaded.collections.items():
        try:
            found = BrokerCollection(name, section, None, loaded.folder)
        except (FedneighborsError, ValueError) as error:
            has_failed = True
            echo(f"{name}: {error}", "red")
            continue
        filters = f", filters {', '.join(found.filters)}" if found.filters else ""
        budget = ", private" if found.settings.privacy is not None else ""
        left = [one for one in found.providers if one not in enrolled]
        missing = f"; not enrolled: {', '.join(left)}" if left else ""
        number = f"{len(found.providers) - len(left)} of {len(found.providers)} providers enrolled"
        echo(f"{name}: {found.metric}, {section.algorithm}{filters}{budget}, {number}{missing}")
    echo(f"users would be answered at {loaded.server.url}")
    if has_failed:
        raise typer.Exit(1)


def _find_role(context: typer.Context, config: Path | None) -> tuple[Any, Path]:
    """Return the name of the group of a command, and its configuration."""
    assert context.parent is not None
    role = context.parent.info_name
    return role, config or Path(f"{role}.toml")


def bench(
    url: Annotated[str, typer.Argument(help="Address of the broker.")],
    collection: Annotated[str, typer.Argument(help="Name of the collection.")],
    queries: Annotated[
        Path | None,
        typer.Option(
            help="File with a query in each line, as for `fedneighbors search`. By default, "
            "vectors, places and rows are drawn at random."
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of neighbors.")] = 10,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds in which to send.")] = 10,
    in_flight: Annotated[int, typer.Option(min=1, max=100, help="Queries at a time.")] = 8,
    charge: Annotated[
        int | None, typer.Option(min=1, help="Queries to charge, of a private collection.")
    ] = None,
    purpose: Purpose = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    certificate: Certificate = None,
    keys: Keys = None,
) -> None:
    """Measure throughput and latency of searches of a running broker.

    Queries count for quotas, and are logged. The parts of the latency are measured at the end, with
    some queries one at a time, twice each: network, broker, and slowest provider of each exchange
    with its link. The token is read from the environment variable FEDNEIGHBORS_TOKEN.
    """
    import asyncio
    import json

    from fedneighbors.service._bench import run_bench
    from fedneighbors.service._client import AsyncRemoteNeighbors

    lines = None if queries is None else queries.read_text("utf-8").splitlines()
    options: dict[str, Any] = {"token": read_token(), "purpose": purpose or None}
    options["keys"] = None if keys is None else read_keys(keys)
    limits: Any = {"k": k, "seconds": seconds, "in_flight": in_flight, "charge": charge}

    async def measure() -> dict[str, Any]:
        remote = AsyncRemoteNeighbors(
            url, collection=collection, certificate=certificate, **options
        )
        with progress_bar() as report:
            async with remote:
                return await run_bench(remote, lines, **limits, report=report)

    figures = asyncio.run(measure())
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
    else:
        _print_figures(figures, f"k = {k}, {in_flight} at a time")


def _print_figures(figures: dict[str, Any], setting: str) -> None:
    """Print the figures of a bench as tables."""
    from fedneighbors.cli._results import print_grid
    from fedneighbors.records import ResultTable

    n, seconds, rate = (figures[name] for name in ("queries", "seconds", "queries_per_second"))
    echo(f"{rate:,.1f} queries a second: {n:,} in {seconds:.1f} s, {setting}", "bold")
    for code, count in figures["failures"].items():
        print_warning(f"{count:,} queries failed: {code}")
    latency = tuple(figures["latency_ms"].items())
    print_grid(ResultTable("latency", "Latency under this load", ("share", "ms"), latency))
    parts = figures["one_at_a_time_ms"]
    whole = sum(parts.values()) or 1.0
    rows = tuple(
        (name, ms, round(100 * ms / whole)) for name, ms in (*parts.items(), ("all", whole))
    )
    title = "Parts of the latency, one query at a time"
    caption = "The slowest provider of each exchange, with its link; the network to the broker."
    print_grid(ResultTable("parts", title, ("part", "ms", "percent"), rows, caption))
