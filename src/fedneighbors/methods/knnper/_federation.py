"""One training over clients of this process, from a table and who owns its rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import Outcome, run_rounds
from fedneighbors.methods.knnper._checkpoint import Checkpoint, fingerprint
from fedneighbors.methods.knnper._client import KNNPerParty
from fedneighbors.methods.knnper._inputs import probe, refuse_unsuited
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.methods.knnper._simulation import Cohort
from fedneighbors.methods.knnper._tasks import CLASSES, Task
from fedneighbors.methods.knnper.protocol import Shared, coordinate
from fedneighbors.neural._blueprint import chosen_network
from fedneighbors.neural._network import Network
from fedneighbors.tabular._ownership import Holdings, one_thread
from fedneighbors.tabular._schema import Label

Trained = tuple[Outcome[Shared], Network, Sequence[KNNPerParty]]


def federated(
    asked: Any,
    holdings: Holdings,
    rounds: RoundSettings,
    settings: MemorySettings,
    reserved: tuple[Label, ...] = (),
    kind: Task = CLASSES,
) -> Trained:
    """Train what an estimator asks for.

    Parameters
    ----------
    asked : estimator
        Its parameters ``model``, ``embedding``, ``head``, ``hidden``, ``standardize``, ``trainer``,
        ``device`` and ``checkpoint`` are read.
    holdings : Holdings
        The table and its owners.
    rounds : RoundSettings
        Of the shared network.
    settings : MemorySettings
        Of the clients' memories.
    reserved : tuple of labels
        Classes that may come later.
    kind : Task
        What is learned: classes or numbers.

    Returns
    -------
    outcome : Outcome of Shared
    network : Network
    members : list of KNNPerParty
        The clients, with what they made of the network.
    """
    if getattr(asked, "privacy", None) is not None:
        from fedneighbors.methods.knnper.private._training import federated_privately

        return federated_privately(asked, holdings, rounds, settings, reserved)
    _refuse_apart(asked)
    network = _network(asked, holdings, rounds, reserved, kind)
    members = _members(asked, holdings, network, settings, kind)
    keeper = None
    if asked.checkpoint is not None:
        keeper = _keeper(asked, network, holdings, rounds, settings, (kind, reserved))
    coordinator = coordinate(
        rounds,
        network.digest,
        network.initial,
        tuple(holdings.owned),
        combine=settings.combine,
        standardize=bool(asked.standardize) and holdings.x.ndim == 2 and not network.reads_tokens,
        discriminate=settings.looks_at_rows and kind.discriminates and not network.reads_tokens,
        kind=kind,
        reserved=reserved,
        resumed=None if keeper is None else keeper.resumed(),
        keep=(lambda _stage: None) if keeper is None else keeper.keep,
    )
    with one_thread():
        if getattr(asked, "sums", "plain") == "plain":
            outcome = run_rounds(coordinator, Cohort(members, method=asked.trainer))
        else:
            outcome = run(coordinator, members, sums=asked.sums)
    if keeper is not None:
        keeper.done()
    return outcome, network, members


def _network(
    asked: Any, holdings: Holdings, rounds: RoundSettings, reserved: tuple[Label, ...], kind: Task
) -> Network:
    """Return the network that is asked for, if it suits the rows."""
    shape, n_outputs = holdings.x.shape[1:], kind.n_outputs(holdings.y, reserved)
    network = chosen_network(asked, shape, n_outputs, seed=rounds.seed)
    refuse_unsuited(network, shape, n_outputs, kind=holdings.x.dtype.kind)
    return network


def _members(
    asked: Any, holdings: Holdings, network: Network, settings: MemorySettings, kind: Task
) -> list[KNNPerParty]:
    """Return the clients, each with the rows that it owns."""
    return [
        KNNPerParty(
            name,
            holdings.x[rows],
            holdings.y[rows],
            network,
            settings=settings,
            feature_names=holdings.feature_names,
            kind=kind,
            device=getattr(asked, "device", "cpu"),
        )
        for name, rows in holdings.owned.items()
    ]


def _refuse_apart(asked: Any) -> None:
    """Refuse to train clients side by side whose parts of a sum nobody else may see."""
    if getattr(asked, "sums", "plain") == "masked" and asked.trainer == "stacked":
        raise ValueError(
            "clients whose sums are masked train by themselves, one after another; take "
            "trainer='auto' or 'reuse'"
        )


def _keeper(
    asked: Any,
    network: Network,
    holdings: Holdings,
    rounds: RoundSettings,
    settings: MemorySettings,
    learned: tuple[Task, tuple[Label, ...]],
) -> Checkpoint:
    """Return the training's place on disk, which tells it from all others."""
    if asked.random_state is None:
        raise ValueError(
            "a training whose seed is drawn anew is never the one on disk; give random_state a "
            "number, or leave checkpoint out"
        )
    owned = {name: np.arange(len(holdings.y))[rows] for name, rows in holdings.owned.items()}
    labels = tuple(map(str, holdings.y.tolist()))
    kind, reserved = learned
    words = (
        network.digest,
        network.embedding,
        network.head,
        rounds,
        settings,
        tuple(owned),
        labels,
    )
    mark = fingerprint(
        *words,
        type(kind).__name__,
        reserved,
        bool(asked.standardize),
        arrays=(network.initial, holdings.x, *owned.values()),
    )
    shape = holdings.x.shape[1:]
    return Checkpoint(asked.checkpoint, mark, probe(network, shape, kind=holdings.x.dtype.kind))
