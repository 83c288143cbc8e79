"""Clients of one process: what the protocol asks of all of them is done in as few steps as can be.

The coordinator is the one of every runtime. Only the way to the clients is shorter: nothing is
packed, clients train side by side, and sums are formed as their parts come, so that memory does
not grow with the number of clients.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from fedneighbors.errors import PartyRefused
from fedneighbors.federation._loop import Outcome
from fedneighbors.federation._messages import Message, encode
from fedneighbors.federation._roles import Ask, Coordinator, Refuse, Replies
from fedneighbors.federation._sums import add_up
from fedneighbors.methods.knnper._client import KNNPerParty, regime_of
from fedneighbors.methods.knnper._messages import TrainRequest
from fedneighbors.methods.knnper.protocol import Shared
from fedneighbors.neural._trainer import CHUNK, LocalTask, Trainer
from fedneighbors.records import Round


class Cohort:
    """Clients whose rows lie in one table, which train side by side.

    Parameters
    ----------
    parties : sequence of KNNPerParty
        The clients; they train on the device of the first.
    method : {"auto", "stacked", "reuse"}
        As :class:`~.training.trainer.Trainer` takes it.
    """

    def __init__(
        self,
        parties: Sequence[KNNPerParty],
        *,
        method: Literal["auto", "stacked", "reuse"] = "auto",
    ) -> None:
        self.parties = {party.name: party for party in sorted(parties, key=lambda p: p.name)}
        self._method: Literal["auto", "stacked", "reuse"] = method
        self._first = 0
        self._trainer: Trainer | None = None

    def replies(self, ask: Ask) -> tuple[Replies, Mapping[str, Message]]:
        """Return what all asked clients reply, and their requests.

        Raises
        ------
        PartyRefused
            If one refuses.
        """
        requests = ask.for_parties(tuple(self.parties))
        if _trains(requests):
            each = self._trained(requests)
        else:
            self._trainer = None  # what clients learn, and in which units, may change
            each = self._answered(requests)
        if ask.reduce == "gather":
            return Replies(dict(each), None, {}), requests
        summed: Message | None = None
        for name, reply in each:
            summed = reply if summed is None else add_up({f"before {name}": summed, name: reply})
        return Replies({}, summed, {}), requests

    def _answered(self, requests: Mapping[str, Message]) -> Any:
        for name in sorted(requests):
            try:
                yield name, self.parties[name].answer(requests[name])
            except Refuse as refuse:
                raise PartyRefused(name, refuse.code, refuse.detail) from None

    def _trained(self, requests: Mapping[str, TrainRequest]) -> Any:
        names = sorted(requests)
        trainer = self._table()
        for first in range(0, len(names), CHUNK):
            some = names[first : first + CHUNK]
            tasks = [self._task(name, requests[name]) for name in some]
            for name, state in zip(
                some, trainer.train(tasks, regime_of(requests[some[0]])), strict=True
            ):
                party = self.parties[name]
                try:
                    yield name, party.update(requests[name], party.layout.vector(state))
                except Refuse as refuse:
                    raise PartyRefused(name, refuse.code, refuse.detail) from None

    def _task(self, name: str, request: TrainRequest) -> LocalTask:
        task = self.parties[name].task(request)
        return LocalTask(task.rows + self._offsets[name], task.start, task.words)

    def _table(self) -> Trainer:
        """Return what trains all clients, whose rows are put into one table once."""
        if self._trainer is None:
            parties = list(self.parties.values())
            ends = torch.tensor([0, *(party.n_rows for party in parties)]).cumsum(0).tolist()
            self._offsets = dict(zip(self.parties, ends[:-1], strict=True))
            x = torch.cat([party.x for party in parties])
            y = torch.cat([party.targets for party in parties])
            first = parties[0]
            self._trainer = Trainer(
                first.network,
                x,
                y,
                method=self._method,
                objective=first.kind.objective,
                device=first.device,
            )
        return self._trainer


def _trains(requests: Mapping[str, Message]) -> bool:
    return all(isinstance(request, TrainRequest) for request in requests.values())


def simulate(
    coordinator: Coordinator[Shared],
    cohort: Cohort,
    *,
    on_round: Callable[[Round], None] = lambda _round: None,
) -> Outcome[Shared]:
    """Drive a coordinator to its end over clients of this process.

    Parameters
    ----------
    coordinator : generator
        The training.
    cohort : Cohort
        Its clients.
    on_round : callable
        Told of each exchange, with the bytes that it would take between machines.
    """
    rounds: list[Round] = []
    replies: Replies | None = None
    try:
        while True:
            try:
                ask = next(coordinator) if replies is None else coordinator.send(replies)
            except StopIteration as stop:
                return Outcome(stop.value, tuple(rounds))
            started = time.perf_counter()
            replies, requests = cohort.replies(ask)
            rounds.append(_record(len(rounds), ask, requests, replies, started))
            on_round(rounds[-1])
    finally:
        coordinator.close()


def _record(
    index: int, ask: Ask, requests: Mapping[str, Message], replies: Replies, started: float
) -> Round:
    """Return the record of an exchange; all clients are sent, and return, equally many bytes."""
    first = next(iter(requests.values()))
    down = len(encode(first))
    up = {name: len(encode(reply)) for name, reply in replies.each.items()}
    if replies.total is not None:
        up = dict.fromkeys(requests, len(encode(replies.total)))
    return Round(
        index=index,
        request=type(first).__name__,
        reduce=ask.reduce,
        upload_bytes={name: up[name] for name in sorted(up)},
        download_bytes=dict.fromkeys(sorted(requests), down),
        seconds=time.perf_counter() - started,
        missing={},
        busy_s={},
    )
