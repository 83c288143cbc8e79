"""``fedneighbors broker backup`` and ``restore``, the same of providers, and ``bench``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedneighbors.service._backup import Role

_BROKER, _PROVIDER = Path("broker.toml"), Path("provider.toml")
NewArchive = Annotated[Path, typer.Argument(help="The archive, which must not exist.")]
Archive = Annotated[Path, typer.Argument(help="The archive.")]
ConfigFile = Annotated[Path, typer.Option("--config", help="The configuration.")]
NewConfig = Annotated[
    Path, typer.Option("--config", help="Place of the configuration, which must not exist.")
]
DigestOption = Annotated[
    str, typer.Option(help="Digest that the backup printed, to detect another archive.")
]


def backup_broker(archive: NewArchive, config: ConfigFile = _BROKER) -> None:
    """Save configuration, keys, enrolments, tokens, ledgers and log in one file.

    The broker may run. Keep the file secret: it has the broker's key. Prints its digest.
    """
    _backup("broker", archive, config)


def restore_broker(
    archive: Archive, digest: DigestOption = "", config: NewConfig = _BROKER
) -> None:
    """Write the files of a backup to the paths of its configuration.

    No file is replaced: if one exists, nothing is written. Private queries are refused until
    `fedneighbors ledger reconcile`.
    """
    _restore("broker", archive, config, digest)


def backup_provider(archive: NewArchive, config: ConfigFile = _PROVIDER) -> None:
    """Save configuration, key, ledger, log and forgotten names in one file.

    The provider may run. Keep the file secret: it has the provider's key. Objects are not in it.
    Prints its digest.
    """
    _backup("provider", archive, config)


def restore_provider(
    archive: Archive, digest: DigestOption = "", config: NewConfig = _PROVIDER
) -> None:
    """Write the files of a backup to the paths of its configuration.

    No file is replaced: if one exists, nothing is written. Private queries are refused until
    `fedneighbors ledger reconcile`.
    """
    _restore("provider", archive, config, digest)


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
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Seconds in which queries are sent.")
    ] = 10,
    in_flight: Annotated[
        int, typer.Option("--in-flight", min=1, max=100, help="Number of queries at a time.")
    ] = 8,
    algorithm: Annotated[str, typer.Option(help="In place of the collection's.")] = "",
    charge: Annotated[
        int | None,
        typer.Option(
            min=1, help="Queries that may be charged to the budgets of a private collection."
        ),
    ] = None,
    purpose: Annotated[
        str, typer.Option(help="Purpose of the queries, which providers may require; it is logged.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    certificate: Annotated[
        Path | None, typer.Option(help="Certificate of the broker, if it is self-signed (PEM).")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(help="Lines of `fedneighbors provider key`, to seal the queries (TOML)."),
    ] = None,
) -> None:
    """Measure throughput and latency of searches of a running broker.

    Queries count for quotas, and are logged. The parts of the latency are measured at the end, with
    some queries one at a time, twice each: network, broker, and slowest provider of each exchange
    with its link. The token is read from the environment variable FEDNEIGHBORS_TOKEN.
    """
    import asyncio
    import json

    from fedneighbors.cli._console import progress_bar
    from fedneighbors.cli._search import _read_keys, _read_token
    from fedneighbors.service._bench import BenchResult, draw_queries, run_bench
    from fedneighbors.service._client import AsyncRemoteNeighbors
    from fedneighbors.service._remote_search import read_text_query

    async def measure() -> BenchResult:
        async with AsyncRemoteNeighbors(
            url,
            collection=collection,
            token=_read_token(),
            algorithm=algorithm or None,
            purpose=purpose or None,
            certificate=certificate,
            keys=None if keys is None else _read_keys(keys),
        ) as remote:
            description = await remote.describe()
            remote.check_trust(description)
            if description["private"] and charge is None:
                raise ValueError(
                    f"collection {collection!r} is private, and each different query is charged to "
                    "its budgets: pass --charge with the number of queries; nothing was sent"
                )
            if queries is None:
                found = draw_queries(description)
            else:
                lines = filter(None, map(str.strip, queries.read_text("utf-8").splitlines()))
                found = [read_text_query(line, description["objects"]) for line in lines]
            most = charge if description["private"] else None
            with progress_bar() as report:
                return await run_bench(
                    remote,
                    found,
                    k=k,
                    seconds=seconds,
                    in_flight=in_flight,
                    most=most,
                    report=report,
                )

    figures = asyncio.run(measure()).to_json()
    if as_json:
        typer.echo(json.dumps(figures))
    else:
        _print_figures(figures)


def _print_figures(figures: dict[str, Any]) -> None:
    from fedneighbors.cli._console import echo

    rate, failures = figures["queries_per_second"], figures["failures"]
    echo(
        f"{figures['queries']} queries in {figures['seconds']:.1f} s: {rate:.1f} a second", "green"
    )
    for title, name in (
        ("latency", "latency_ms"),
        ("at the broker", "broker_ms"),
        ("one at a time", "one_at_a_time_ms"),
    ):
        parts = ", ".join(f"{part} {value:.1f}" for part, value in figures[name].items())
        echo(f"{title} (ms): {parts}")
    for code, number in failures.items():
        echo(f"{number} failed: {code}", "red")


def _backup(role: "Role", archive: Path, config: Path) -> None:
    from fedneighbors.service._backup import write_backup

    typer.echo(write_backup(role, config, archive))


def _restore(role: "Role", archive: Path, config: Path, digest: str) -> None:
    from fedneighbors.cli._console import echo
    from fedneighbors.service._backup import restore_backup

    ledgers = restore_backup(role, archive, config, digest=digest)
    echo(f"the {role} of {config} is restored", "green")
    echo("repeat what was done after the backup: revoked keys, deleted tokens, forgotten names")
    for ledger in ledgers:
        echo(
            f"private queries are refused: lower max_queries by those after the backup, then "
            f"fedneighbors ledger reconcile {ledger}"
        )
