"""Charge the ledger, draw noise, store the reply; idempotent per request.

Refusals do not depend on rows: a request is checked before the charge, and a failure after the
charge stays charged and is reported without its cause.
"""

import hashlib
import logging
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
    """Gate for all releases of one party that are charged to its budget.

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
    """

    method: str
    party: str
    ledger: Ledger
    dataset: str
    user: str

    def release(
        self, request: Any, *, attempt: str, cost: Guarantee, draw: Callable[[], Message]
    ) -> Message:
        """Charge, draw and store a reply.

        Parameters
        ----------
        request : message
            Request with the name of the training run in ``run``. Repeated within the same run, it
            gets the stored reply.
        attempt : str
            Id of the masked sum that contains the reply; each masked sum is a separate release.
            Empty without one.
        cost : Guarantee
            Cost of the reply.
        draw : callable
            Draws the reply; called after the charge.

        Raises
        ------
        Refused
            If the budget does not allow the release, the ledger is unusable, or the draw failed.
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
        """Return the digest of party, data set and request."""
        asked = repr((self.party, self.dataset)).encode() + encode(request)
        return hashlib.sha256(asked).hexdigest()

    def release_bytes(
        self, query: str, *, cost: Guarantee, draw: Callable[[], bytes], purpose: str
    ) -> bytes:
        """Charge, draw and store the bytes of a release.

        Parameters
        ----------
        query : str
            Identifier of the release within the method; a repeated query gets the stored bytes.
        cost : Guarantee
            Cost of the release.
        draw : callable
            Draws the bytes; called after the charge.
        purpose : str
            Description of the release for people.

        Raises
        ------
        Refused
            If the budget does not allow the release, the ledger is unusable, or the draw failed.
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
            raise Refused("its privacy budget does not allow this release") from error
        except LedgerError as error:
            raise Refused("its ledger cannot be used") from error
        except Exception as error:
            kind = type(error).__name__  # logged only: the text may hold values, a refusal is sent
            places = "".join(traceback.format_tb(error.__traceback__))
            log.error("a release failed with %s and stays charged\n%s", kind, places)
            raise Refused(
                "a release failed; it stays charged, and the party's log says where"
            ) from error


def check_noise_shares(masked: MaskedRound, *, n_shares: int, colluders: int) -> None:
    """Check that a masked sum surely contains ``n_shares`` honest noise shares."""
    try:
        sure = guaranteed_shares(
            n_asked=masked.n_asked, threshold=masked.threshold, colluders=colluders
        )
    except PrivacyError as error:
        raise Refused("masks or noise of this sum do not hold against the colluders") from error
    if not 1 <= n_shares <= sure:
        raise Refused("more noise shares are expected than the survivors are sure to add")
