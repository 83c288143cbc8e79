"""Command-line options of differential privacy."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedneighbors.privacy._policy import Privacy


_PANEL = "Privacy"

EpsilonOption = Annotated[
    str | None,
    typer.Option(
        help="Train under differential privacy with this epsilon, such as 1 or 1/2.",
        rich_help_panel=_PANEL,
    ),
]
DeltaOption = Annotated[
    str | None,
    typer.Option(
        help="Delta of the guarantee, such as 1e-6; FlyNN needs --mechanism central for it.",
        rich_help_panel=_PANEL,
    ),
]
MechanismOption = Annotated[
    str,
    typer.Option(
        help="central (noise shares under masks), local (full noise at each party) or, for FlyNN "
        "only, paper (Algorithm 2).",
        rich_help_panel=_PANEL,
    ),
]
SchemaOption = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        help="Schema file (TOML) with the columns, ranges and labels of the table; a privacy "
        "budget requires one. See [bold]fedneighbors schema[/bold].",
    ),
]


def privacy_of(
    epsilon: str | None,
    delta: str | None,
    mechanism: str,
    schema: Path | None,
    *,
    delta_only_central: bool = True,
) -> "Privacy | None":
    """Return the privacy settings of the options, None without ``--epsilon``.

    Parameters
    ----------
    epsilon, delta, mechanism, schema
        Values of the command line.
    delta_only_central : bool
        Raise if there is a delta for another mechanism than ``"central"``.

    Raises
    ------
    typer.BadParameter
        If there is a delta without epsilon, no schema, or a value is out of range.
    """
    from fedneighbors.privacy._policy import privacy_from

    if epsilon is None:
        if delta:
            raise typer.BadParameter("--delta needs --epsilon, the budget")
        return None
    config = {
        "epsilon": epsilon,
        "delta": delta or "",
        "mechanism": mechanism,
        "schema": "" if schema is None else str(schema),
    }
    try:
        privacy = privacy_from(config)
        if privacy is not None and delta_only_central:
            privacy.check_delta()
        return privacy
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error
