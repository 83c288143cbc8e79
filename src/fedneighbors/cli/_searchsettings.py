"""How a command line says which search is to be run, how privately, and over what links."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedneighbors.methods.fedknn import FederatedNeighbors
    from fedneighbors.privacy._policy import Privacy
    from fedneighbors.privacy.ledger._ledger import Ledger


_PRIVACY = "Privacy"
_LINKS = "Machines"


class AlgorithmName(StrEnum):
    """Algorithms, as the command line spells them."""

    AUTO = "auto"
    DANN = "dann"
    BASELINE = "baseline"
    DANN_STAR = "dann*"
    HUFU = "hufu"
    HUFU_PLUS = "hufu+"


class Guarantee(StrEnum):
    """What private answers promise."""

    EXACT = "exact"
    CERTIFIED = "certified"


class Workers(StrEnum):
    """Where parties answer."""

    THREADS = "threads"
    PROCESSES = "processes"


AlgorithmOption = Annotated[
    AlgorithmName,
    typer.Option(
        help="How parties are asked; the answers are the same. auto takes what is expected to be "
        "the fastest, see fedneighbors explain."
    ),
]
QueryEpsilonOption = Annotated[
    str | None,
    typer.Option(
        help="What one query may tell each party about the objects of the others, as 1 or 1/2.",
        rich_help_panel=_PRIVACY,
    ),
]
QueryDeltaOption = Annotated[
    str | None,
    typer.Option(
        help="Probability that this may fail, as 1e-6; for --guarantee exact.",
        rich_help_panel=_PRIVACY,
    ),
]
GuaranteeOption = Annotated[
    Guarantee,
    typer.Option(
        help="Under --epsilon: answers that are always exact, or that say whether they are.",
        rich_help_panel=_PRIVACY,
    ),
]
LedgerOption = Annotated[
    Path | None,
    typer.Option(
        help="The broker's ledger, with a budget for each party, that pays for the queries; "
        "without it they are paid from one that ends with the run.",
        rich_help_panel=_PRIVACY,
    ),
]
DelayOption = Annotated[
    float,
    typer.Option(min=0, help="Round trip to each party in ms, by waiting.", rich_help_panel=_LINKS),
]
WorkersOption = Annotated[
    Workers, typer.Option(help="Where parties answer.", rich_help_panel=_LINKS)
]


@dataclass(frozen=True)
class Settings:
    """A search, as the command line says it."""

    metric: str
    algorithm: AlgorithmName
    epsilon: str | None
    delta: str | None
    guarantee: Guarantee
    delay_ms: float
    workers: Workers
    seed: int

    def search(self) -> "FederatedNeighbors":
        """Return the search, to be fitted.

        Raises
        ------
        typer.BadParameter
            If privacy is asked for in terms that make no sense.
        """
        from fedneighbors.federation._inprocess import Link
        from fedneighbors.methods.fedknn import FederatedNeighbors

        return FederatedNeighbors(
            metric=self.metric,
            algorithm=self.algorithm.value,
            privacy=self._privacy(),
            guarantee=self.guarantee.value,
            random_state=self.seed,
            workers=self.workers.value,
            link=Link(self.delay_ms / 1e3) if self.delay_ms else None,
        )

    def _privacy(self) -> "Privacy | None":
        from fedneighbors.privacy._policy import Privacy

        if self.epsilon is None:
            if self.delta or self.guarantee is Guarantee.CERTIFIED:
                raise typer.BadParameter("--delta and --guarantee need --epsilon, the budget")
            return None
        try:
            return Privacy(epsilon=self.epsilon, delta=self.delta or 0)
        except (ValueError, TypeError) as error:
            raise typer.BadParameter(str(error)) from error


def opened(ledger: Path | None) -> "AbstractContextManager[Ledger | None]":
    """Return the ledger of a file, open while the block runs; None where none is named.

    Raises
    ------
    LedgerError
        If there is no such ledger, or it cannot be opened.
    """
    if ledger is None:
        return nullcontext()
    from fedneighbors.privacy.ledger._ledger import Ledger

    return Ledger(ledger, must_exist=True)
