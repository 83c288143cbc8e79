"""Charge the ledger, draw noise, store the reply; idempotent per request.

A refusal depends on no rows: a request is checked before the charge, and a failure after it stays
charged and is reported without its cause.
"""

import hashlib
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedneighbors.errors import BudgetExceeded, LedgerError, PrivacyError
from fedneighbors.federation._messages import Message, decode, encode
from fedneighbors.federation._roles import MaskedRound, Refuse
from fedneighbors.privacy._guarantees import Guarantee
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.noise._calibration import shares_counted_on

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReleaseGate:
    """Exit of all releases of one party that are charged to its budget.

    Parameters
    ----------
    method : str
        Name of the method, as ``"FlyNN"``.
    party : str
        Name of the party.
    ledger : Ledger
        Keeps the budget.
    dataset, user : str
        Data set and user that are charged.
    """

    method: str
    party: str
    ledger: Ledger
    dataset: str
    user: str

    def release(
        self, request: Any, *, attempt: str, cost: Guarantee, draw: Callable[[], Message]
    ) -> Message:
        """Charge for a reply, draw it, store it, and return it.

        The ledger stores the reply.

        Parameters
        ----------
        request : message
            With the name of the training in ``run``; repeated in it, the reply is the same.
        attempt : str
            Masked sum that the reply goes into, each a release of its own; empty if none.
        cost : Guarantee
            Of the reply.
        draw : callable
            Makes the reply once it is charged.

        Raises
        ------
        Refuse
            If the budget does not allow it, the ledger cannot be used, or the draw failed.
        """
        kind = type(request).__name__.removesuffix("Request")
        answer = self.release_bytes(
            f"{request.run} {self.digest(request)} {attempt}".rstrip(),
            cost=cost,
            draw=lambda: encode(draw()),
            purpose=kind,
        )
        return decode(answer, (type(request).reply,))

    def digest(self, request: Message) -> str:
        """Return the digest of a request about this party's data set."""
        asked = repr((self.party, self.dataset)).encode() + encode(request)
        return hashlib.sha256(asked).hexdigest()

    def release_bytes(
        self, query: str, *, cost: Guarantee, draw: Callable[[], bytes], purpose: str
    ) -> bytes:
        """Charge for bytes, draw them, store them, and return them.

        The ledger stores the bytes.

        Parameters
        ----------
        query : str
            Identifier of the release within the method; repeated, the bytes are the same.
        cost : Guarantee
            Of the release.
        draw : callable
            Makes the bytes once they are charged.
        purpose : str
            For people.

        Raises
        ------
        Refuse
            If the budget does not allow it, the ledger cannot be used, or the draw failed.
        """
        try:
            return self.ledger.release(
                f"{self.method.lower()} {query}",
                dataset=self.dataset,
                user=self.user,
                cost=cost,
                draw=draw,
                purpose=f"{self.method}: {purpose}",
            )
        except BudgetExceeded as error:
            raise Refuse("its privacy budget does not allow this release") from error
        except LedgerError as error:
            raise Refuse("its ledger cannot be used") from error
        except Exception as error:
            kind = type(error).__name__  # its text may hold values, and its kind would travel
            places = "".join(traceback.format_tb(error.__traceback__))
            log.error("a release failed with %s and stays charged\n%s", kind, places)
            raise Refuse(
                "a release failed; it stays charged, and the party's log says where"
            ) from error


def refuse_few_shares(masked: MaskedRound, *, n_shares: int, colluders: int) -> None:
    """Raise unless a masked sum has ``n_shares`` honest noise shares."""
    try:
        sure = shares_counted_on(
            n_asked=masked.n_asked, threshold=masked.threshold, colluders=colluders
        )
    except PrivacyError as error:
        raise Refuse("masks or noise of this sum do not hold against the colluders") from error
    if not 1 <= n_shares <= sure:
        raise Refuse("more noise shares are counted on than survivors are sure to bring")
