"""``fedneighbors broker log`` and ``provider log``: the logs of queries."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedneighbors.cli._console import echo
from fedneighbors.errors import DataError

if TYPE_CHECKING:
    from fedneighbors.service._access_log import AccessLog

broker_log = typer.Typer(
    no_args_is_help=True, help="Verify and export the log of all queries and changes."
)
provider_log = typer.Typer(
    no_args_is_help=True, help="Verify, export and compare the log of all requests."
)

_BROKER, _PROVIDER = Path("broker.toml"), Path("provider.toml")
BrokerFile = Annotated[Path, typer.Option("--config", help="The broker's configuration.")]
ProviderFile = Annotated[Path, typer.Option("--config", help="The provider's configuration.")]
HeadOption = Annotated[
    str, typer.Option(help="Earlier head, kept elsewhere, from which the log must continue.")
]


@broker_log.command("verify", epilog="Example: [bold]fedneighbors broker log verify[/bold]")
def verify_broker(head: HeadOption = "0:", config: BrokerFile = _BROKER) -> None:
    """Check the digests of all entries; print the head.

    Keep the head elsewhere: with it, a later check finds entries that were altered or removed by
    somebody who can write the file.
    """
    _verify(_open_broker(config), head)


@provider_log.command("verify", epilog="Example: [bold]fedneighbors provider log verify[/bold]")
def verify_provider(head: HeadOption = "0:", config: ProviderFile = _PROVIDER) -> None:
    """Check the digests of all entries; print the head.

    Keep the head elsewhere: with it, a later check finds entries that were altered or removed by
    somebody who can write the file.
    """
    _verify(_open_provider(config)[0], head)


@broker_log.command("export", epilog="Example: [bold]fedneighbors broker log export > log[/bold]")
def export_broker(config: BrokerFile = _BROKER) -> None:
    """Print the entries as JSON lines, with times in ISO 8601 (UTC)."""
    _export(_open_broker(config))


@provider_log.command("export", epilog="Example: [bold]fedneighbors provider log export[/bold]")
def export_provider(config: ProviderFile = _PROVIDER) -> None:
    """Print the entries as JSON lines, with times in ISO 8601 (UTC)."""
    _export(_open_provider(config)[0])


@provider_log.command("compare", epilog="Example: [bold]fedneighbors provider log compare log[/]")
def compare(
    other: Annotated[Path, typer.Argument(help="Exported log of the broker (JSON lines).")],
    config: ProviderFile = _PROVIDER,
) -> None:
    """Compare this log with the broker's; print each difference.

    The exit code is 1 if a query is missing in one of them, has another user, purpose or content,
    or showed the broker more objects than it states.
    """
    import json

    from fedneighbors.service._access_log import compare_logs

    log, name = _open_provider(config)
    try:
        entries = [json.loads(line) for line in other.read_text("utf-8").splitlines()]
        with contextlib.closing(log):
            differences = compare_logs(name, log.entries(), iter(entries))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{other} is no exported log of a broker: {error!r}") from None
    for line in differences:
        echo(line, "red")
    if differences:
        raise typer.Exit(1)
    queries = [entry for entry in entries if entry["collection"]]  # others are of administrators
    echo(f"the logs agree on {len(queries)} queries", "green")


def _open_broker(config: Path) -> "AccessLog":
    from fedneighbors.service._config import BrokerConfig

    loaded = BrokerConfig.read(config)
    return _open(loaded.path(loaded.log))


def _open_provider(config: Path) -> "tuple[AccessLog, str]":
    from fedneighbors.service._config import ProviderConfig

    loaded = ProviderConfig.read(config)
    return _open(loaded.path(loaded.provider.log)), loaded.provider.name


def _open(path: Path) -> "AccessLog":
    from fedneighbors.service._access_log import AccessLog

    if not path.is_file():
        raise DataError(f"there is no log {path}; it is made at the first start")
    return AccessLog(path)


def _verify(log: "AccessLog", head: str) -> None:
    with contextlib.closing(log):
        number = log.verify(head)
        proof = "" if head != "0:" else " in themselves; give an earlier --head to prove more"
        echo(f"{number} entries agree{proof}; the head is {log.head}", "green")


def _export(log: Any) -> None:
    import json
    from datetime import UTC, datetime

    with contextlib.closing(log):
        for entry in log.entries():
            moment = datetime.fromtimestamp(entry["time"], UTC).isoformat(timespec="milliseconds")
            typer.echo(json.dumps({**entry, "time": moment.replace("+00:00", "Z")}))
