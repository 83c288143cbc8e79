"""Training in one process: transport to clients, and training over the owners of a table."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedneighbors.errors import PartyRefused
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import Delivery, Outcome, Replies, run_rounds, sum_replies
from fedneighbors.federation._messages import Message, encode
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.knnper._checkpoint import Checkpoint, compute_fingerprint
from fedneighbors.methods.knnper._client import KNNPerParty
from fedneighbors.methods.knnper._frozen import FrozenModel, coordinate_frozen
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.methods.knnper.protocol import LossRequest, Shared, TrainRequest, coordinate
from fedneighbors.neural._blueprint import build_network
from fedneighbors.tabular._ownership import Holdings, one_blas_thread, one_thread
from fedneighbors.tabular._schema import Label

if TYPE_CHECKING:
    from fedneighbors.neural._network import Network
    from fedneighbors.neural._trainer import LocalTask, Trainer


class Cohort:
    """Transport to clients in this process, which can be trained as one batched product.

    Messages are not sent as bytes. Replies are summed as they arrive, so that the memory for them
    does not grow with the number of clients.

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

    def deliver(
        self, requests: Mapping[str, Message], *, reduce: Literal["gather", "sum"]
    ) -> Delivery:
        """Return the clients' replies, and the sizes that messages would have.

        Raises
        ------
        PartyRefused
            If a client refuses.
        """
        if all(isinstance(request, TrainRequest) for request in requests.values()):
            each = self._train(requests)
        else:
            if not isinstance(next(iter(requests.values())), LossRequest):
                self._trainer = None  # this request may change the clients' rows and targets
            each = self._collect_replies(requests)
        if reduce == "gather":
            replies = Replies(dict(each), None, {})
            upload_bytes = {name: len(encode(reply)) for name, reply in replies.each.items()}
        else:
            replies = Replies({}, _sum_as_they_arrive(each), {})
            upload_bytes = dict.fromkeys(requests, len(encode(replies.total)))
        first = next(iter(requests.values()))  # requests to all clients have equal sizes
        return Delivery(replies, upload_bytes, dict.fromkeys(requests, len(encode(first))))

    def _collect_replies(self, requests: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        for name in sorted(requests):
            try:
                yield name, self.parties[name].answer(requests[name])
            except Refused as refuse:
                raise PartyRefused(name, refuse.code, refuse.detail) from None

    def _train(self, requests: Mapping[str, TrainRequest]) -> Iterator[tuple[str, Message]]:
        from fedneighbors.neural._trainer import MAX_STACKED

        names = sorted(requests)
        trainer = self._joint_trainer()
        for first in range(0, len(names), MAX_STACKED):
            chunk = names[first : first + MAX_STACKED]
            tasks = [self._joint_task(name, requests[name]) for name in chunk]
            states = trainer.train(tasks, requests[chunk[0]].regime)
            for name, state in zip(chunk, states, strict=True):
                party = self.parties[name]
                try:
                    yield name, party.make_update(requests[name], trainer.network.vector(state))
                except Refused as refuse:
                    raise PartyRefused(name, refuse.code, refuse.detail) from None

    def _joint_task(self, name: str, request: TrainRequest) -> "LocalTask":
        """Return a client's task with positions in the joined rows."""
        from fedneighbors.neural._trainer import LocalTask

        task = self.parties[name].local_task(request)
        return LocalTask(task.rows + self._offsets[name], task.start, task.seed_parts)

    def _joint_trainer(self) -> "Trainer":
        """Return the trainer on the joined rows of all clients, cached."""
        import torch

        from fedneighbors.neural._trainer import Trainer

        if self._trainer is None:
            parties = list(self.parties.values())
            ends = torch.tensor([0, *(party.n_rows for party in parties)]).cumsum(0).tolist()
            self._offsets = dict(zip(self.parties, ends[:-1], strict=True))
            x = torch.cat([party.x for party in parties])
            y = torch.cat([party.targets for party in parties])
            first = parties[0]
            self._trainer = Trainer(
                first.trained_network,
                x,
                y,
                method=self._method,
                objective=first.task.objective,
                device=first.device,
            )
        return self._trainer


def _sum_as_they_arrive(arrivals: Iterator[tuple[str, Message]]) -> Message:
    total: Message | None = None
    for name, reply in arrivals:
        total = reply if total is None else sum_replies({f"before {name}": total, name: reply})
    return total


TrainingResult = tuple[Outcome[Shared], "Network | FrozenModel", Sequence[KNNPerParty]]


def train_federated(
    estimator: Any,
    holdings: Holdings,
    rounds: RoundSettings,
    settings: MemorySettings,
    reserved: tuple[Label, ...],
) -> TrainingResult:
    """Train over a table's owners; return outcome, model and clients.

    Parameters
    ----------
    estimator : estimator
        Its task, and its parameters for the network and the training are read.
    holdings : Holdings
        The table and its owners.
    rounds : RoundSettings
        Training settings of the shared network.
    settings : MemorySettings
        Settings of the clients' memories.
    reserved : tuple of labels
        Classes that may occur later.
    """
    if estimator.representation != "network":
        return _train_frozen(estimator, holdings, settings, reserved)
    if getattr(estimator, "privacy", None) is not None:
        from fedneighbors.methods.knnper.private._training import train_private_federation

        return train_private_federation(estimator, holdings, rounds, settings, reserved)
    if estimator.sums == "masked" and estimator.trainer == "stacked":
        raise ValueError(
            "with masked sums, clients train one after another; use trainer='auto' or 'reuse'"
        )
    from fedneighbors.neural._blueprint import check_network

    x, task = holdings.x, estimator._task
    n_outputs = task.n_outputs(holdings.y, reserved)
    network = build_network(estimator, x.shape[1:], n_outputs, seed=rounds.seed)
    check_network(network, x.shape[1:], n_outputs, dtype_kind=x.dtype.kind)
    options = {"network": network, "settings": settings, "task": task, "device": estimator.device}
    members = holdings.parties(KNNPerParty, n_threads=1, **options)
    checkpoint = None
    if estimator.checkpoint is not None:
        checkpoint = _checkpoint(estimator, network, holdings, (rounds, settings), reserved)
    coordinator = coordinate(
        rounds,
        settings,
        network,
        task,
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
        checkpoint.delete()
    return outcome, network, members


def _train_frozen(
    estimator: Any, holdings: Holdings, settings: MemorySettings, reserved: tuple[Label, ...]
) -> TrainingResult:
    """Compute the shared head on a frozen embedding."""
    if getattr(estimator, "privacy", None) is not None:
        raise ValueError(
            "the sums for a frozen embedding are exact, so they are not private; use "
            "representation='network'"
        )
    if estimator.checkpoint is not None:
        raise ValueError("a frozen embedding has no rounds to resume; omit checkpoint")
    task = estimator._task
    n_outputs = task.n_outputs(holdings.y, reserved)
    model = FrozenModel.of(estimator.representation, holdings.x.shape[1:], n_outputs)
    if model.kind == "discriminants" and not task.has_discriminants:
        raise ValueError(
            'discriminants need classes; for numeric targets, use representation="rows", a '
            "function or a transformer"
        )
    members = holdings.parties(
        KNNPerParty, n_threads=1, network=model, settings=settings, task=task
    )
    coordinator = coordinate_frozen(
        settings,
        model,
        task,
        standardize=model.can_standardize and bool(estimator.standardize),
        reserved=reserved,
    )
    with one_blas_thread():
        if estimator.sums == "plain":
            return run_rounds(coordinator, Cohort(members)), model, members
        return run(coordinator, members, sums=estimator.sums), model, members


def _checkpoint(
    estimator: Any,
    network: "Network",
    holdings: Holdings,
    settings: tuple[RoundSettings, MemorySettings],
    reserved: tuple[Label, ...],
) -> Checkpoint:
    """Return the training's checkpoint, identified by a fingerprint."""
    if estimator.random_state is None:
        raise ValueError(
            "a training with random_state=None cannot resume from a file; set random_state to an "
            "integer, or omit checkpoint"
        )
    x, labels = holdings.x, tuple(map(str, holdings.y.tolist()))
    owned = {name: np.arange(len(labels))[rows] for name, rows in holdings.owned.items()}
    fingerprint = compute_fingerprint(
        network.digest,
        network.embedding,
        network.head,
        *settings,
        tuple(owned),
        labels,
        type(estimator._task).__name__,
        reserved,
        bool(estimator.standardize),
        arrays=(network.initial, x, *owned.values()),
    )
    from fedneighbors.neural._blueprint import probe_outputs

    probe = probe_outputs(network, x.shape[1:], dtype_kind=x.dtype.kind)
    return Checkpoint(estimator.checkpoint, fingerprint, probe)
