"""A kNN-Per client with a privacy budget; every reply is charged or declared public."""

import hashlib
import logging
import secrets
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedneighbors.federation._messages import Message, decode, encode
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.knnper._client import KNNPerParty, as_tensor
from fedneighbors.methods.knnper.algorithm import weighted_change
from fedneighbors.methods.knnper.private.protocol import (
    BeginRequest,
    NoisedCountsReply,
    NoisedCountsRequest,
    PrivateTrainRequest,
    PublicClientSchemaRequest,
)
from fedneighbors.methods.knnper.protocol import ReleaseRequest, UpdateReply
from fedneighbors.neural._dp_sgd import Budget, StepPlan, plan_steps, train_private
from fedneighbors.neural._network import Network
from fedneighbors.privacy._accounting import fits
from fedneighbors.privacy._guarantees import Guarantee, PureDP, Sensitivity
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.noise._calibration import noise_function
from fedneighbors.tabular._private import PrivateTableParty
from fedneighbors.tabular._schema import Receipt

log = logging.getLogger(__name__)

ROW_COUNTS = Sensitivity(unit="row", neighbors="add_remove", l1=1, l2_squared=1, linf=1)
"""Sensitivity of the class counts to one row."""

_REQUESTS = (
    PublicClientSchemaRequest,
    NoisedCountsRequest,
    BeginRequest,
    PrivateTrainRequest,
    ReleaseRequest,
)
_KEY_BYTES = 32
_FARTHEST = 2.0**32
_FREE = PureDP(Fraction(0))


class PrivateKNNPerParty(PrivateTableParty, KNNPerParty):
    """A client's rows with a ledger.

    Replies are noisy. They are charged to the ledger before the noise is drawn, and stored there: a
    repeated request in the same run gets the same reply. All steps of a training are charged before
    the first one. The only reply of the exact protocol is to the release of the network, from which
    the client builds its own memory: **predictions from that memory are not private**.

    No row makes a request fail. Each row is validated and clipped separately: values that are not
    finite are replaced, values outside the column bounds are clipped to the nearer bound, and rows
    without an agreed label are dropped.

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
        Terms of this client; a request with other terms is refused.
    remember : bool
        Store the weights of every round in the ledger, so that a repeated request gets the same
        ones; otherwise it is refused. Each round takes the size of the network.
    **others
        The ledger, and the parameters of every client: see
        :class:`~fedneighbors.tabular._private.PrivateTableParty` and
        :class:`~fedneighbors.methods.knnper._client.KNNPerParty`.

    Attributes
    ----------
    plan : StepPlan or None
        Training steps, after they were charged.
    counted : accountant or None
        Accountant of Opacus with all steps recorded by the optimizer.
    """

    method = "kNN-Per"

    def __init__(
        self,
        name: str,
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        network: Network,
        *,
        privacy: Privacy,
        remember: bool = True,
        **others: Any,
    ) -> None:
        super().__init__(name, np.asarray(x), y, network, privacy=privacy, **others)
        self.accepts = _REQUESTS
        self.counted: Any = None
        self._budget = Budget.of(privacy)
        self._remember = remember
        self._announced = 0
        self._begun: BeginRequest | None = None
        self.plan: StepPlan | None = None

    @staticmethod
    def _records(x: Any, y: npt.NDArray[Any], privacy: Privacy) -> tuple[Any, npt.NDArray[Any]]:
        """Return rows with an agreed label, clipped to the agreed bounds."""
        if x.dtype.kind == "f":
            x = np.clip(np.nan_to_num(x), -_FARTHEST, _FARTHEST)
        if privacy.bounds is not None:
            low, high = (np.asarray(bound, x.dtype) for bound in privacy.bounds)
            x = np.clip(x, low, high)
        return x, y

    @property
    def spent(self) -> Guarantee:
        """Return the total that the ledger has charged for the data set."""
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
                return self._round(request)
            case ReleaseRequest():
                return self._both_releases(request)
        raise Refused("unknown request")

    def _noised_counts(self, request: NoisedCountsRequest) -> NoisedCountsReply:
        self._check_terms(request)
        self._check_classes(request.classes)
        n_classes = len(request.classes)
        cost, noised = noise_function(
            self._budget.counts, ROW_COUNTS, n_shares=None, n_cells=n_classes, bits=self._bits
        )
        query = f"{request.run} {self._gate.digest(request)} counts"
        self._check_room(query)
        self._labels = self._positions(request.classes)
        self.x = as_tensor(self._x, request.center, request.scale, self.network)

        def draw() -> bytes:
            counts = noised(np.bincount(self._labels, minlength=n_classes))
            return encode(NoisedCountsReply(max(1, int(counts.sum())), counts))

        kept = self._gate.release_bytes(query, cost=cost, draw=draw, purpose="class counts")
        reply: NoisedCountsReply = decode(kept, (NoisedCountsReply,))
        self._announced = reply.n_rows
        return reply

    def _check_room(self, query: str) -> None:
        """Raise if the budget does not cover the training to its end.

        A training that has begun is never refused.
        """
        ledger, dataset, user = self._gate.ledger, self._gate.dataset, self._gate.user
        if ledger.users_of([f"knn-per {query}"]):
            return
        whole = (self._budget.counts, self._budget.steps)
        if not all(fits(whole, ledger.left(dataset, who)) for who in ("", user)):
            raise Refused("its privacy budget does not allow this training")

    def _begin(self, request: BeginRequest) -> Receipt:
        """Charge all steps.

        The ledger stores the key of the held-out choice.
        """
        self._check_terms(request)
        if not self._announced:
            raise Refused("the class counts must come first")
        numbers = request.numbers
        if len(set(numbers)) < len(numbers) or not (request.bound > 0 and request.batch_size > 0):
            raise Refused("the announced steps are invalid")
        plan = plan_steps(
            max(1, round(self._announced * (1 - self.settings.validation))),
            request.batch_size,
            epochs=request.epochs,
            n_rounds=max(1, len(numbers)),
            allowed=self._budget.steps,
        )
        key = self._gate.release_bytes(
            f"{request.run} {self._gate.digest(request)} steps",
            cost=plan.cost,
            draw=lambda: secrets.token_bytes(_KEY_BYTES),
            purpose=f"{plan.n_steps * plan.n_rounds} private steps",
        )
        # One coin per row: an additional row must not change the other held-out rows.
        coins = np.random.default_rng(int.from_bytes(key)).random(self.n_rows)
        self.held_out = coins < self.settings.validation
        self._begun, self.plan = request, plan
        return Receipt()

    def _round(self, request: PrivateTrainRequest) -> UpdateReply:
        """Return a round's weight change, from the ledger if stored."""
        begun, plan = self._begun, self.plan
        if begun is None or plan is None or begun.run != request.run:
            raise Refused("no steps of this training were announced")
        if request.number not in begun.numbers:
            raise Refused("this round was not announced")
        mark, made = hashlib.sha256(encode(request)).digest(), []

        def draw() -> bytes:
            made.append(self._train(request, begun, plan))
            return mark + (made[0].tobytes() if self._remember else b"")

        kept = self._gate.release_bytes(
            f"{begun.run} {self._gate.digest(begun)} round {request.number}",
            cost=_FREE,
            draw=draw,
            purpose=f"round {request.number + 1}, charged with the steps",
        )
        if not made and (kept[: len(mark)] != mark or not self._remember):
            raise Refused("this round was answered before; a new training must be charged again")
        after = made[0] if made else np.frombuffer(kept[len(mark) :], request.weights.dtype)
        try:
            change = weighted_change(
                request.weights, after, n_rows=self._announced, bits=request.bits
            )
        except FloatingPointError:  # noisy weights, which are public
            raise Refused("training has diverged: lower the learning rate") from None
        return UpdateReply(change)

    def _train(
        self, request: PrivateTrainRequest, begun: BeginRequest, plan: StepPlan
    ) -> npt.NDArray[np.floating[Any]]:
        rows = torch.from_numpy(self.rows(held_out=True))
        state, counted = train_private(
            self.network,
            self.network.state(request.weights),
            self.x[rows],
            self.targets[rows],
            plan=plan,
            regime=request.regime,
            bound=begun.bound,
        )
        if self.counted is None:
            self.counted = counted
        else:
            self.counted.history += counted.history
        return self.network.vector(state)

    def _both_releases(self, request: ReleaseRequest) -> Receipt:
        """Choose the mixture on held-out rows and build the memory.

        Both use the same network.

        The reply does not depend on success, because a row could cause a failure.
        """
        try:
            for final in (False, True):
                self._release(replace(request, final=final))
        except Exception as error:
            log.error("no memory was built: %s", type(error).__name__)
            self.personal = None
        return Receipt()
