"""Command-line options of differential privacy."""

from collections.abc import Sequence
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
        help="Delta of the guarantee, such as 1e-6; for --mechanism central.",
        rich_help_panel=_PANEL,
    ),
]
MechanismOption = Annotated[
    str,
    typer.Option(
        help="central (noise shares under masks), local (full noise at each party) or paper.",
        rich_help_panel=_PANEL,
    ),
]
PublicOption = Annotated[
    str,
    typer.Option(
        help="Public facts, comma-separated: classes (which labels occur), scaling (mean and "
        "spread of columns), n_rows. A simulated federation of one file needs the first "
        "two.",
        rich_help_panel=_PANEL,
    ),
]
BoundsOption = Annotated[
    str,
    typer.Option(
        help="Lowest and highest values from documentation, as JSON: [low, high], each a "
        "number or a list with one number per column. Required with --epsilon.",
        rich_help_panel=_PANEL,
    ),
]


def privacy_of(
    epsilon: str | None,
    delta: str | None,
    mechanism: str,
    public: str,
    *,
    bounds: str = "",
    read_off: Sequence[str] = ("classes", "scaling"),
    delta_only_central: bool = True,
) -> "Privacy | None":
    """Return the privacy settings of the options, None without ``--epsilon``.

    Parameters
    ----------
    epsilon, delta, mechanism, public, bounds : str
        Values of the command line.
    read_off : sequence of str
        Facts that the training derives from the file, which must be declared public.
    delta_only_central : bool
        True if ``"local"`` noise does not use a delta.

    Raises
    ------
    typer.BadParameter
        If other privacy options are given without it, a value is out of range, or a fact that the
        training derives from the file was not declared public.
    """
    from fedneighbors.privacy._policy import privacy_from

    if epsilon is None:
        if delta or public or bounds:
            raise typer.BadParameter("--delta, --public and --bounds need --epsilon, the budget")
        return None
    for fact in read_off:
        if fact not in public:
            raise typer.BadParameter(
                f"{fact} is derived from the rows of the file; if it is public knowledge, "
                f"declare it with --public {_option_text(read_off)}"
            )
    config = {
        "epsilon": epsilon,
        "delta": delta or "",
        "mechanism": mechanism,
        "public": public,
        "bounds": bounds,
    }
    try:
        privacy = privacy_from(config)
        if privacy is not None and delta_only_central:
            privacy.check_delta()
        return privacy
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error


def _option_text(facts: Sequence[str]) -> str:
    """Return the facts of ``--public``; scaling requires the number of rows."""
    return "classes,n_rows,scaling" if "scaling" in facts else ",".join(facts)
