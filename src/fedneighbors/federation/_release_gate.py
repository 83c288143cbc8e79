"""How a party answers out of a budget: charge, draw, keep, and the same again to the same request.

A refusal tells nothing of the rows: what can be wrong with a request is found before the charge,
and a failure behind it stays charged and says only that there was one.
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
class Till:
    """Where one party's answers are paid for.

    Parameters
    ----------
    method : str
        Of the training, as ``"FlyNN"``.
    party : str
        Whose answers.
    ledger : Ledger
        Keeps the budget.
    dataset, user : str
        What is charged, and for whom.
    """

    method: str
    party: str
    ledger: Ledger
    dataset: str
    user: str

    def pay(
        self, request: Any, *, attempt: str, cost: Guarantee, draw: Callable[[], Message]
    ) -> Message:
        """Charge for a reply, draw it, keep it in the ledger, and return it.

        Parameters
        ----------
        request : message
            With the name of the training in ``run``; asked again in it, the reply is the same.
        attempt : str
            Of a masked sum, each of which is a release of its own; empty for a plain reply.
        cost : Guarantee
            Of the reply.
        draw : callable
            Makes the reply once that is paid.

        Raises
        ------
        Refuse
            If the budget does not allow it, the ledger cannot be used, or the draw failed.
        """
        kind = type(request).__name__.removesuffix("Request")
        answer = self.keep(
            f"{request.run} {self.digest(request)} {attempt}".rstrip(),
            cost=cost,
            draw=lambda: encode(draw()),
            purpose=kind,
        )
        return decode(answer, (type(request).reply,))

    def digest(self, request: Message) -> str:
        """Return what tells a request to this party about this data set from all others."""
        asked = repr((self.party, self.dataset)).encode() + encode(request)
        return hashlib.sha256(asked).hexdigest()

    def keep(
        self, query: str, *, cost: Guarantee, draw: Callable[[], bytes], purpose: str
    ) -> bytes:
        """Charge for bytes, draw them, keep them in the ledger, and return them.

        Parameters
        ----------
        query : str
            What is asked for, told from all else of this method; asked for again, it is the same.
        cost : Guarantee
            Of the release.
        draw : callable
            Makes the bytes once that is paid.
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
    """Return if so many honest shares of noise are sure to be in a masked sum.

    Raises
    ------
    Refuse
        If not.
    """
    try:
        sure = shares_counted_on(
            n_asked=masked.n_asked, threshold=masked.threshold, colluders=colluders
        )
    except PrivacyError as error:
        raise Refuse("masks or noise of this sum do not hold against the colluders") from error
    if not 1 <= n_shares <= sure:
        raise Refuse("more noise shares are counted on than survivors are sure to bring")
