"""Charge the ledger, draw noise, store the reply; idempotent per request.

Callers check a request before the charge, so that their refusals do not depend on rows. A failure
after the charge may depend on a row: then the charge stands, and the refusal names no cause.
"""

import hashlib
import logging
import secrets
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedneighbors.errors import BudgetExceeded, LedgerError, PrivacyError
from fedneighbors.federation._messages import Message, decode, encode
from fedneighbors.federation._roles import MaskedRound, Refused
from fedneighbors.privacy._guarantees import Guarantee
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.noise._calibration import guaranteed_shares

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReleaseGate:
    """Charges one party's noised replies to its ledger, and repeats stored ones.

    Parameters
    ----------
    method : str
        Name of the method, such as ``"FlyNN"``.
    party : str
        Name of the party.
    ledger : Ledger
        Ledger that holds the budget.
    dataset, user : str
        Data set and user to charge.
    content : bytes
        Digest of the rows. A stored reply is repeated only for the same rows, also by another
        process; changed rows begin a new epoch of the data set.
    """

    method: str
    party: str
    ledger: Ledger
    dataset: str
    user: str
    content: bytes

    def release(
        self, request: Any, *, attempt: str, cost: Guarantee, draw: Callable[[], Message]
    ) -> Message:
        """Charge a reply to the ledger, draw its noise and store it.

        Parameters
        ----------
        request : message
            Request with the name of the training run in ``run``. Repeated within the same run, it
            gets the stored reply.
        attempt : str
            Id of the masked sum that the reply is part of, or empty; each masked sum is a separate
            release. A masked reply has only a share of the noise, so the ledger stores a random
            token in its place, and the sum cannot be repeated.
        cost : Guarantee
            Cost of the reply.
        draw : callable
            Draws the noise and returns the reply; called after the charge.

        Raises
        ------
        Refused
            If the budget does not allow the release, the ledger is unusable, the draw failed, or
            the masked sum was answered before.
        """
        drawn: dict[bytes, Message] = {}

        def draw_token() -> bytes:
            token = secrets.token_bytes(16)
            drawn[token] = draw()
            return token

        answer = self.release_bytes(
            f"{request.run} {self.digest(request)} {attempt}".rstrip(),
            cost=cost,
            draw=draw_token if attempt else lambda: encode(draw()),
            purpose=type(request).__name__.removesuffix("Request"),
        )
        if not attempt:
            return decode(answer, (type(request).reply,))
        if answer not in drawn:
            raise Refused("this masked sum was answered before; begin another one")
        return drawn[answer]

    def digest(self, request: Message) -> str:
        """Return the digest of party, data set and request."""
        content = repr((self.party, self.dataset)).encode() + encode(request)
        return hashlib.sha256(content).hexdigest()

    def release_bytes(
        self, query: str, *, cost: Guarantee, draw: Callable[[], bytes], purpose: str
    ) -> bytes:
        """Charge bytes to the ledger, draw their noise and store them.

        Parameters
        ----------
        query : str
            Id of the release within the method; for the same rows, a repeated id gets the stored
            bytes.
        cost : Guarantee
            Cost of the release.
        draw : callable
            Draws the noise and returns the bytes; called after the charge.
        purpose : str
            Description of the release in the ledger.

        Raises
        ------
        Refused
            If the budget does not allow the release, the ledger is unusable, or the draw failed.
        """
        try:
            return self.ledger.release(
                self._release_id(query),
                dataset=self.dataset,
                user=self.user,
                cost=cost,
                draw=draw,
                purpose=f"{self.method}: {purpose}",
            )
        except BudgetExceeded as error:
            raise Refused("its privacy budget does not allow this release") from error
        except LedgerError as error:
            raise Refused("its ledger cannot be used") from error
        except Exception as error:
            name = type(error).__name__  # the error's text may contain values: not logged or sent
            stack = "".join(traceback.format_tb(error.__traceback__))
            log.error("a release failed with %s; if charged, it stays charged\n%s", name, stack)
            raise Refused(
                "a release failed; if it was charged, it stays charged; see the party's log"
            ) from error

    def is_charged(self, query: str) -> bool:
        """Return whether a release was charged for the present rows."""
        return bool(self.ledger.users_of([self._release_id(query)]))

    def _release_id(self, query: str) -> str:
        """Return the id of a release in the ledger."""
        return f"{self.method.lower()} {query} {self.ledger.epoch(self.dataset, self.content)}"


def check_noise_shares(masked: MaskedRound, *, n_shares: int, colluders: int) -> None:
    """Raise unless ``n_shares`` honest noise shares in a masked sum are guaranteed.

    An honest share is one that the colluders do not know.

    Raises
    ------
    Refused
        If fewer are guaranteed, or ``n_shares`` is below 1.
    """
    try:
        n_guaranteed = guaranteed_shares(
            n_asked=masked.n_asked, threshold=masked.threshold, colluders=colluders
        )
    except PrivacyError as error:
        raise Refused(
            "the masks or the noise do not protect against that many colluders"
        ) from error
    if not 1 <= n_shares <= n_guaranteed:
        raise Refused("n_shares must be 1 to the number of noise shares guaranteed in the sum")
