"""``fedneighbors broker backup`` and ``restore``, the same of providers, and ``bench``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
