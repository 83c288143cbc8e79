"""Queries that are open at the providers: asked one after another, closed together.

Providers are told that a query is over after its answer is there, so that no answer waits for it.
"""

from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from fedneighbors.errors import PartyMissing
from fedneighbors.federation.inprocess import Connected
from fedneighbors.federation.loop import Outcome
from fedneighbors.federation.roles import Coordinator
from fedneighbors.methods.fedknn.answers import Answer, farewell

__all__ = ["OpenQueries"]

MOST_OPEN = 64
"""Queries after which providers are told that these are over."""


class OpenQueries:
    """The queries of one call, in a ``with`` block whose end closes them.

    Parameters
    ----------
    federation : Connected
        Whom they are asked of.
    names : iterator of str
        A new one for each query.
    """

    def __init__(self, federation: Connected, names: Iterator[str]) -> None:
        self._federation = federation
        self._names = names
        self._open: list[str] = []
        self._missing: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._close()

    def new(self) -> str:
        """Return the name of a new query; queries before it may be closed first."""
        if len(self._open) == MOST_OPEN:
            self._close()
        self._open.append(next(self._names))
        return self._open[-1]

    def run(self, coordinator: Coordinator[Answer]) -> Outcome[Answer]:
        """Ask an open query.

        Raises
        ------
        Exception
            What the coordinator or a party raises.
        """
        try:
            outcome = self._federation.run(coordinator)
        except PartyMissing as error:
            self._missing |= set(error.missing)
            raise
        self._missing |= set(outcome.result.missing)
        return outcome

    def _close(self) -> None:
        """Close what is open, at whoever has not been missing."""
        present = [name for name in self._federation.names if name not in self._missing]
        over, self._open = self._open, []
        if over and present:
            with suppress(Exception):  # the answers stand whatever a party makes of it
                self._federation.run(farewell(over, present))
