"""Training under a privacy budget in a simulated federation, with a ledger for each client.

The ledgers have the budget of this training only. They are in memory and end with it; clients of a
real federation have their ledgers in files.
"""

from typing import Any

import torch

from fedneighbors._lazy import optional_module
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import Outcome
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.methods.knnper.private._party import PrivateKNNPerParty
from fedneighbors.methods.knnper.private.protocol import (
    PrivateRounds,
    coordinate_private,
    scaling_of,
)
from fedneighbors.methods.knnper.protocol import Shared
from fedneighbors.neural._blueprint import build_network, check_network
from fedneighbors.neural._dp_sgd import check_private
from fedneighbors.neural._network import Network
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.tabular._ownership import Holdings, one_thread
from fedneighbors.tabular._schema import Label


def train_private_federation(
    estimator: Any,
    holdings: Holdings,
    rounds: RoundSettings,
    settings: MemorySettings,
    reserved: tuple[Label, ...] = (),
) -> tuple[Outcome[Shared], Network, list[PrivateKNNPerParty]]:
    """Train an estimator within its privacy budget.

    Parameters
    ----------
    estimator : estimator
        Its parameters for the network and the training are read, and ``privacy`` and
        ``max_grad_norm``.
    holdings : Holdings
        The table and its owners.
    rounds : RoundSettings
        Training settings of the shared network.
    settings : MemorySettings
        Settings of the clients' memories.
    reserved : tuple of labels
        Classes that may occur later.

    Raises
    ------
    MissingExtraError
        If Opacus is not installed.
    ValueError
        If a setting is not supported under privacy, or labels or bounds are missing in ``privacy``.
    """
    privacy: Privacy = estimator.privacy
    _check_settings(estimator, settings)
    training = PrivateRounds(rounds, estimator.max_grad_norm, privacy)
    optional_module("opacus", "dpsgd")
    classes = set(privacy.classes or ())
    if set(reserved) - classes:
        raise ValueError("list all labels in Privacy(classes=...), and omit the parameter classes")
    shape = holdings.x.shape[1:]
    network = build_network(estimator, shape, len(classes), seed=rounds.seed)
    check_network(network, shape, len(classes), dtype_kind=holdings.x.dtype.kind)
    dtype = torch.int64 if network.reads_tokens else network.dtype
    check_private(network, shape, dtype)
    options: dict[str, Any] = {}
    if estimator.standardize and len(shape) == 1 and not network.reads_tokens:
        options["scaling"] = scaling_of(privacy, shape[0])

    def member(name: str, x: Any, y: Any, **others: Any) -> PrivateKNNPerParty:
        ledger = Ledger(":memory:", party=name)
        ledger.set_budget("table", privacy.total)
        return PrivateKNNPerParty(name, x, y, network, privacy=privacy, ledger=ledger, **others)

    # weights are not stored: no request is repeated, and the ledger ends with the training
    members = holdings.parties(member, n_threads=1, settings=settings, store_weights=False)
    coordinator = coordinate_private(training, network, **options)
    with one_thread():
        outcome = run(coordinator, members, sums=estimator.sums)
    return outcome, network, members


def _check_settings(estimator: Any, settings: MemorySettings) -> None:
    """Raise ValueError for settings that private training does not support."""
    if settings.combine != "paper":
        raise ValueError(
            "the weights of a pool are fitted on exact sums over held-out rows, which are not "
            "private; use combine='paper'"
        )
    if estimator.checkpoint is not None:
        raise ValueError(
            "the ledgers of fit end with the call, so a private training cannot resume from a "
            "file; omit checkpoint"
        )
    if estimator.trainer == "stacked":
        raise ValueError("private clients train one after another; use trainer='auto'")
    if estimator.device == "cuda":
        raise ValueError("private clients train on the CPU; use device='cpu' or 'auto'")
