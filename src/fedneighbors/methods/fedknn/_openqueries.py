"""Queries that are open at the providers: asked one after another, closed together.

Providers are told that a query is over after its answer is there, so that no answer waits for it.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from fedneighbors.errors import PartyMissing
from fedneighbors.federation._inprocess import Connected
from fedneighbors.federation._loop import Outcome
from fedneighbors.federation._roles import Coordinator
from fedneighbors.methods.fedknn._answers import Answer, farewell

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
        self._open: dict[str, Mapping[str, str]] = {}  # and who was missing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            self._close()  # an interrupt waits for nobody

    def new(self) -> str:
        """Return the name of a new query; queries before it may be closed first."""
        if len(self._open) == MOST_OPEN:
            self._close()
        name = next(self._names)
        self._open[name] = {}
        return name

    def run(self, name: str, coordinator: Coordinator[Answer]) -> Outcome[Answer]:
        """Ask an open query.

        Parameters
        ----------
        name : str
            From :meth:`new`.
        coordinator : generator
            Asks it under this name.

        Raises
        ------
        Exception
            What the coordinator or a party raises.
        """
        try:
            outcome = self._federation.run(coordinator)
        except PartyMissing as error:
            self._open[name] = error.missing
            raise
        self._open[name] = outcome.result.missing
        return outcome

    def _close(self) -> None:
        """Close what is open; a party is told of the queries that it was there for."""
        over, self._open = self._open, {}
        told = {
            party: [name for name, missing in over.items() if party not in missing]
            for party in self._federation.names
        }
        told = {party: names for party, names in told.items() if names}
        if told:
            with suppress(Exception):  # the answers stand whatever a party makes of it
                self._federation.run(farewell(told))
