"""A kNN-Per client with a privacy budget: its replies are charged, public, or empty."""

import hashlib
import logging
import secrets
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array
from fedneighbors.federation._messages import Message, decode, encode
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.knnper._client import MAX_VALUE, KNNPerParty
from fedneighbors.methods.knnper.algorithm import weighted_change
from fedneighbors.methods.knnper.private.protocol import (
    BeginRequest,
    NoisedCountsReply,
    NoisedCountsRequest,
    PrivateTrainRequest,
    PublicClientSchemaRequest,
)
from fedneighbors.methods.knnper.protocol import ReleaseRequest, UpdateReply
from fedneighbors.neural._blueprint import as_tensor
from fedneighbors.neural._dp_sgd import Budget, StepPlan, check_private, plan_steps, train_private
from fedneighbors.neural._network import Network
from fedneighbors.privacy._accounting import fits
from fedneighbors.privacy._guarantees import Guarantee, PureDP, Sensitivity
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.noise._calibration import calibrate_noise
from fedneighbors.tabular._private import PrivateTableParty, flush_subnormal
from fedneighbors.tabular._schema import Receipt

log = logging.getLogger(__name__)

ROW_COUNTS = Sensitivity(unit="row", neighbors="add_remove", l1=1, l2_squared=1, linf=1)
"""Sensitivity of the class counts: a row changes one count by 1."""

_REQUESTS = (
    PublicClientSchemaRequest,
    NoisedCountsRequest,
    BeginRequest,
    PrivateTrainRequest,
    ReleaseRequest,
)
_KEY_BYTES = 32

_NO_COST = PureDP(Fraction(0))
"""Cost of a round: all steps were charged when they were announced."""


class PrivateKNNPerParty(PrivateTableParty, KNNPerParty):
    """A client whose noisy replies are charged to a ledger.

    Replies are charged before the noise is drawn, and stored in the ledger: a repeated request in
    the same run gets the same reply. All steps of a training are charged before the first one. Of
    the requests of exact training, only the release of the network is accepted. From it the client
    builds its own memory: **predictions from that memory are not private**.

    No row makes a request fail. Each row is validated and clipped separately: NaN becomes 0,
    infinite and large values become finite, values outside the column bounds are clipped to the
    nearer bound, and rows without an agreed label are dropped.

    Parameters
    ----------
    name : str
        Name in the federation.
    x : array of shape (n_rows, ...)
        Rows of the client.
    y : array of shape (n_rows,)
        Labels.
    network : Network
        Network of all clients.
    privacy : Privacy
        Privacy terms of this client; a request with other terms is refused.
    store_weights : bool
        Store the weights after each round in the ledger, so that a repeated request gets the same
        reply; otherwise it is refused. Each round takes as many bytes as the network.
    **others
        The other parameters of
        :class:`~fedneighbors.tabular._private.PrivateTableParty` and
        :class:`~fedneighbors.methods.knnper._client.KNNPerParty`.

    Attributes
    ----------
    plan : StepPlan or None
        Training steps; None until they are charged.
    accountant : accountant or None
        Accountant of Opacus that recorded all steps of the optimizer; None before the first round.
    """

    method = "kNN-Per"

    def __init__(
        self,
        name: str,
        x: Array,
        y: Array,
        network: Network,
        *,
        privacy: Privacy,
        store_weights: bool = True,
        **others: Any,
    ) -> None:
        super().__init__(name, np.asarray(x), y, network, privacy=privacy, **others)
        self.accepts = _REQUESTS
        self.accountant: Any = None
        self._budget = Budget.of(privacy)
        self._store_weights = store_weights
        self._noised_n_rows = 0
        self._begin_request: BeginRequest | None = None
        self.plan: StepPlan | None = None

    @staticmethod
    def _clean_rows(x: Any, y: Array, privacy: Privacy) -> tuple[Any, Array]:
        """Return finite rows, clipped to the agreed bounds, and their labels."""
        if x.dtype.kind == "f":
            x = flush_subnormal(np.clip(np.nan_to_num(x), -MAX_VALUE, MAX_VALUE))
        if privacy.bounds is not None:
            low, high = (np.asarray(bound, x.dtype) for bound in privacy.bounds)
            x = np.clip(x, low, high)
        return x, y

    @property
    def spent(self) -> Guarantee:
        """Return the total charge of the data set in the ledger."""
        return self._gate.ledger.spent(self._gate.dataset)

    def answer(self, request: Message) -> Message:
        """Return the reply to one of the requests in ``accepts``."""
        match request:
            case PublicClientSchemaRequest():
                if request.layout != self.network.digest:
                    raise Refused("the network differs from the coordinator's")
                return self._schema()
            case NoisedCountsRequest():
                return self._noised_counts(request)
            case BeginRequest():
                return self._begin(request)
            case PrivateTrainRequest():
                return self._train_round(request)
            case ReleaseRequest():
                return self._build_client_state(request)
        raise Refused("unknown request")

    def _noised_counts(self, request: NoisedCountsRequest) -> NoisedCountsReply:
        self._check_terms(request)
        self._check_classes(request.classes)
        self._check_center(request.center)
        n_classes = len(request.classes)
        cost, noised = calibrate_noise(
            self._budget.counts, ROW_COUNTS, n_shares=None, n_cells=n_classes, bits=self._bits
        )
        query = f"{request.run} {self._gate.digest(request)} counts"
        self._check_budget(query)
        self._classes, self._labels = request.classes, self._positions(request.classes)
        self.x = as_tensor(self._x, request.center, request.scale, self.trained_network)

        def draw() -> bytes:
            counts = noised(np.bincount(self._labels, minlength=n_classes))
            return encode(NoisedCountsReply(max(1, int(counts.sum())), counts))

        stored = self._gate.release_bytes(query, cost=cost, draw=draw, purpose="class counts")
        reply: NoisedCountsReply = decode(stored, (NoisedCountsReply,))
        self._noised_n_rows = reply.n_rows
        return reply

    def _check_budget(self, query: str) -> None:
        """Raise Refused unless the budget covers the training to its end.

        A training whose class counts (``query``) were charged is not refused.
        """
        ledger, dataset, user = self._gate.ledger, self._gate.dataset, self._gate.user
        if self._gate.is_charged(query):
            return
        costs = (self._budget.counts, self._budget.steps)
        if not all(fits(costs, ledger.left(dataset, name)) for name in ("", user)):
            raise Refused("its privacy budget does not allow this training")

    def _begin(self, request: BeginRequest) -> Receipt:
        """Charge all steps, and choose the held-out rows with a secret key.

        The ledger stores the key, so that a repeated request chooses the same rows.
        """
        self._check_terms(request)
        if not self._noised_n_rows:
            raise Refused("the class counts must come first")
        try:
            check_private(self.trained_network, tuple(self.x.shape[1:]), self.x.dtype)
        except ValueError as error:
            raise Refused("its network cannot be trained with noise") from error
        plan = plan_steps(
            max(1, round(self._noised_n_rows * (1 - self.settings.validation))),
            request.batch_size,
            epochs=request.epochs,
            n_rounds=max(1, len(request.numbers)),
            allowed=self._budget.steps,
        )
        key = self._gate.release_bytes(
            f"{request.run} {self._gate.digest(request)} steps",
            cost=plan.cost,
            draw=lambda: secrets.token_bytes(_KEY_BYTES),
            purpose=f"{plan.n_steps * plan.n_rounds} private steps",
        )
        # Rows are chosen independently: an additional row must not change the choice of others.
        uniform = np.random.default_rng(int.from_bytes(key)).random(self.n_rows)
        self.held_out = uniform < self.settings.validation
        self._begin_request, self.plan = request, plan
        return Receipt()

    def _train_round(self, request: PrivateTrainRequest) -> UpdateReply:
        """Return a round's weight change, from the ledger if stored."""
        begin, plan = self._begin_request, self.plan
        if begin is None or plan is None or begin.run != request.run:
            raise Refused("no steps of this training were announced")
        if request.number not in begin.numbers:
            raise Refused("this round was not announced")
        digest, trained = hashlib.sha256(encode(request)).digest(), []

        def draw() -> bytes:
            trained.append(self._train(request, begin, plan))
            return digest + (trained[0].tobytes() if self._store_weights else b"")

        stored = self._gate.release_bytes(
            f"{begin.run} {self._gate.digest(begin)} round {request.number}",
            cost=_NO_COST,
            draw=draw,
            purpose=f"round {request.number + 1}, charged with the steps",
        )
        if not trained and (stored[: len(digest)] != digest or not self._store_weights):
            raise Refused("this round was answered before; a new training must be charged again")
        dtype = request.weights.dtype
        after = trained[0] if trained else np.frombuffer(stored[len(digest) :], dtype)
        try:
            change = weighted_change(
                request.weights, after, n_rows=self._noised_n_rows, bits=request.bits
            )
        except FloatingPointError:  # depends on noisy weights only, so the refusal reveals no row
            raise Refused("training has diverged: lower the learning rate") from None
        return UpdateReply(change)

    def _train(
        self, request: PrivateTrainRequest, begin: BeginRequest, plan: StepPlan
    ) -> npt.NDArray[np.floating[Any]]:
        rows, network = self.training_rows(without_held_out=True), self.trained_network
        state, accountant = train_private(
            network,
            network.state(request.weights),
            self.x[rows],
            self.targets[rows],
            plan=plan,
            regime=request.regime,
            bound=begin.bound,
        )
        if self.accountant is None:
            self.accountant = accountant
        else:
            self.accountant.history += accountant.history
        return network.vector(state)

    def _build_client_state(self, request: ReleaseRequest) -> Receipt:
        """Choose the memory weight on held-out rows, then build the memory.

        The network is the same for both. The reply does not depend on success, because a row could
        cause a failure.
        """
        try:
            for final in (False, True):
                self._release(replace(request, final=final))
        except Exception as error:
            log.error("no memory was built: %s", type(error).__name__)
            self.client_state = None
        return Receipt()
