"""Training of clients in this process: transport, and fit of a table."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from fedneighbors.errors import PartyRefused
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import Delivery, Outcome, Replies, run_rounds, sum_replies
from fedneighbors.federation._messages import Message, encode
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.knnper._checkpoint import Checkpoint, fingerprint
from fedneighbors.methods.knnper._client import KNNPerParty, check_network, probe
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.methods.knnper._task import Task
from fedneighbors.methods.knnper.protocol import Shared, TrainRequest, coordinate
from fedneighbors.neural._blueprint import build_network
from fedneighbors.neural._network import Network
from fedneighbors.neural._trainer import CHUNK, LocalTask, Trainer
from fedneighbors.tabular._ownership import Holdings, one_thread
from fedneighbors.tabular._schema import Label


class Cohort:
    """Transport to clients in this process that are trained together.

    Messages are not serialized, and sums are accumulated on arrival, so that memory does not grow
    with the number of clients.

    Parameters
    ----------
    parties : sequence of KNNPerParty
        The clients; they train on the device of the first.
    method : {"auto", "stacked", "reuse"}
        As in :class:`~fedneighbors.neural._trainer.Trainer`.
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
        """Return the names of the clients, ascending."""
        return tuple(self.parties)

    def carry(
        self, requests: Mapping[str, Message], *, reduce: Literal["gather", "sum"]
    ) -> Delivery:
        """Return the replies of all requested clients, with their frame sizes.

        Raises
        ------
        PartyRefused
            If a client refuses.
        """
        if all(isinstance(request, TrainRequest) for request in requests.values()):
            each = self._train(requests)
        else:
            self._trainer = None  # the clients' targets and their units may change
            each = self._answers(requests)
        if reduce == "gather":
            replies = Replies(dict(each), None, {})
            upload_bytes = {name: len(encode(reply)) for name, reply in replies.each.items()}
        else:
            replies = Replies({}, _sum_arrivals(each), {})
            upload_bytes = dict.fromkeys(requests, len(encode(replies.total)))
        first = next(iter(requests.values()))  # all clients get the same number of bytes
        return Delivery(replies, upload_bytes, dict.fromkeys(requests, len(encode(first))))

    def _answers(self, requests: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        for name in sorted(requests):
            try:
                yield name, self.parties[name].answer(requests[name])
            except Refused as refuse:
                raise PartyRefused(name, refuse.code, refuse.detail) from None

    def _train(self, requests: Mapping[str, TrainRequest]) -> Iterator[tuple[str, Message]]:
        names = sorted(requests)
        trainer = self._table()
        for first in range(0, len(names), CHUNK):
            some = names[first : first + CHUNK]
            tasks = [self._task(name, requests[name]) for name in some]
            for name, state in zip(
                some, trainer.train(tasks, requests[some[0]].regime), strict=True
            ):
                party = self.parties[name]
                try:
                    yield name, party.update(requests[name], party.network.vector(state))
                except Refused as refuse:
                    raise PartyRefused(name, refuse.code, refuse.detail) from None

    def _task(self, name: str, request: TrainRequest) -> LocalTask:
        task = self.parties[name].task(request)
        return LocalTask(task.rows + self._offsets[name], task.start, task.words)

    def _table(self) -> Trainer:
        """Return a trainer of all clients on their joined rows, cached."""
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


def _sum_arrivals(each: Iterator[tuple[str, Message]]) -> Message:
    total: Message | None = None
    for name, reply in each:
        total = reply if total is None else sum_replies({f"before {name}": total, name: reply})
    return total


Trained = tuple[Outcome[Shared], Network, Sequence[KNNPerParty]]


def train_federated(
    estimator: Any,
    holdings: Holdings,
    rounds: RoundSettings,
    settings: MemorySettings,
    reserved: tuple[Label, ...],
    kind: Task,
) -> Trained:
    """Train over a table's owners; return outcome, network and clients.

    Parameters
    ----------
    estimator : estimator
        Its parameters ``model``, ``embedding``, ``head``, ``hidden``, ``standardize``, ``trainer``,
        ``device``, ``sums`` and ``checkpoint`` are read.
    holdings : Holdings
        The table and its owners.
    rounds : RoundSettings
        Training settings of the shared network.
    settings : MemorySettings
        Settings of the clients' memories.
    reserved : tuple of labels
        Classes that may occur later.
    kind : Task
        Task: classification or regression.
    """
    if getattr(estimator, "privacy", None) is not None:
        from fedneighbors.methods.knnper.private._training import train_private_federation

        return train_private_federation(estimator, holdings, rounds, settings, reserved)
    if estimator.sums == "masked" and estimator.trainer == "stacked":
        raise ValueError(
            "clients with masked sums train one after another; use trainer='auto' or 'reuse'"
        )
    x = holdings.x
    n_outputs = kind.n_outputs(holdings.y, reserved)
    network = build_network(estimator, x.shape[1:], n_outputs, seed=rounds.seed)
    check_network(network, x.shape[1:], n_outputs, kind=x.dtype.kind)
    options = {"network": network, "settings": settings, "kind": kind, "device": estimator.device}
    members = holdings.parties(KNNPerParty, n_threads=1, **options)
    checkpoint = None
    if estimator.checkpoint is not None:
        checkpoint = _checkpoint(estimator, network, holdings, (rounds, settings), kind, reserved)
    coordinator = coordinate(
        rounds,
        settings,
        network,
        kind,
        standardize=bool(estimator.standardize) and x.ndim == 2,
        reserved=reserved,
        checkpoint=checkpoint,
    )
    with one_thread():
        if estimator.sums == "plain":
            outcome = run_rounds(coordinator, Cohort(members, method=estimator.trainer))
        else:
            outcome = run(coordinator, members, sums=estimator.sums)
    if checkpoint is not None:
        checkpoint.done()
    return outcome, network, members


def _checkpoint(
    estimator: Any,
    network: Network,
    holdings: Holdings,
    settings: tuple[RoundSettings, MemorySettings],
    kind: Task,
    reserved: tuple[Label, ...],
) -> Checkpoint:
    """Return the training's checkpoint, identified by a fingerprint."""
    if estimator.random_state is None:
        raise ValueError(
            "a training with a random seed cannot be resumed from a checkpoint; set random_state "
            "to an integer, or omit checkpoint"
        )
    x, labels = holdings.x, tuple(map(str, holdings.y.tolist()))
    owned = {name: np.arange(len(labels))[rows] for name, rows in holdings.owned.items()}
    mark = fingerprint(
        network.digest,
        network.embedding,
        network.head,
        *settings,
        tuple(owned),
        labels,
        type(kind).__name__,
        reserved,
        bool(estimator.standardize),
        arrays=(network.initial, x, *owned.values()),
    )
    return Checkpoint(estimator.checkpoint, mark, probe(network, x.shape[1:], kind=x.dtype.kind))
