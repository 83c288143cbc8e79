"""Transport to kNN-Per clients of one process, which train side by side.

Nothing is packed, and sums are formed as their parts come, so that memory does not grow with the
number of clients.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch

from fedneighbors.errors import PartyRefused
from fedneighbors.federation._loop import Delivery
from fedneighbors.federation._messages import Message, encode
from fedneighbors.federation._roles import Refuse, Replies, add_up
from fedneighbors.methods.knnper._client import KNNPerParty, regime_of
from fedneighbors.methods.knnper._messages import TrainRequest
from fedneighbors.neural._trainer import CHUNK, LocalTask, Trainer


class Cohort:
    """Transport to clients whose rows lie in one table.

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
        self._trainer: Trainer | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients, ascending."""
        return tuple(self.parties)

    def carry(
        self, requests: Mapping[str, Message], *, reduce: Literal["gather", "sum"]
    ) -> Delivery:
        """Return the replies of all asked clients, with the bytes that frames would take.

        Raises
        ------
        PartyRefused
            If one refuses.
        """
        if all(isinstance(request, TrainRequest) for request in requests.values()):
            each = self._train(requests)
        else:
            self._trainer = None  # what clients learn, and in which units, may change
            each = self._answers(requests)
        if reduce == "gather":
            replies = Replies(dict(each), None, {})
            upload_bytes = {name: len(encode(reply)) for name, reply in replies.each.items()}
        else:
            replies = Replies({}, _running_sum(each), {})
            upload_bytes = dict.fromkeys(requests, len(encode(replies.total)))
        first = next(iter(requests.values()))  # all clients are sent equally many bytes
        return Delivery(replies, upload_bytes, dict.fromkeys(requests, len(encode(first))))

    def _answers(self, requests: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        for name in sorted(requests):
            try:
                yield name, self.parties[name].answer(requests[name])
            except Refuse as refuse:
                raise PartyRefused(name, refuse.code, refuse.detail) from None

    def _train(self, requests: Mapping[str, TrainRequest]) -> Iterator[tuple[str, Message]]:
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
                    yield name, party.update(requests[name], party.network.vector(state))
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


def _running_sum(each: Iterator[tuple[str, Message]]) -> Message:
    total: Message | None = None
    for name, reply in each:
        total = reply if total is None else add_up({f"before {name}": total, name: reply})
    return total
