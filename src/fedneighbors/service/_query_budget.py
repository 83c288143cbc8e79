"""A provider's own budget of private queries, in a ledger out of the broker's reach."""

import hashlib
import logging
from fractions import Fraction

from fedneighbors.errors import BudgetExceeded, LedgerError
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._provider import PrivateRequest
from fedneighbors.privacy._guarantees import Guarantee, PureDP
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.service._config import PrivateSection

log = logging.getLogger(__name__)

BUDGET_SPENT = "the privacy budget of the provider, or of the user there, is spent"
"""Code of the refusal of a private query that does not fit a budget."""

LEDGER_FAILED = "the provider cannot write its ledger of private queries"
"""Code of the refusal of a request that cannot be charged."""

NO_USER = "a private query needs the name of its user"
"""Code of the refusal of a query whose user has no name, or one that no ledger takes."""


class QueryBudget:
    """Budget of the private queries of one collection.

    A user is charged for a query: its bytes, which include a filter, k, and the epoch of the
    objects. The replies to it are functions of these three and at most the k nearest objects, in
    any number of requests and under any name. The counts of a query reveal more to other providers
    if their noise is drawn again; this is another charge. The broker states the id of the noise; a
    false id can only add charges.

    Parameters
    ----------
    ledger : Ledger
        Ledger of the provider.
    collection : str
        Name of the collection, which is the data set in the ledger.
    section : PrivateSection
        Cost of a query, and number of queries.
    """

    def __init__(self, ledger: Ledger, collection: str, section: PrivateSection) -> None:
        self._ledger, self._collection, self._section = ledger, collection, section
        budget = section.budget(section.max_queries)
        if ledger.budget(collection) != budget and not ledger.is_held:
            ledger.set_budget(collection, budget)

    def charge(
        self,
        request: PrivateRequest,
        epoch: bytes,
        *,
        user: str,
        max_queries: int | None,
        noise: str,
    ) -> None:
        """Charge a user for a query, unless it is charged already.

        Parameters
        ----------
        request : PrivateRequest
            A request of the query.
        epoch : bytes
            Version of the objects.
        user : str
            Name of the user, as the broker states it.
        max_queries : int or None
            Maximum number of queries of this user.
        noise : str
            Id of the noise on the counts, as the broker states it; empty before it is drawn.

        Raises
        ------
        Refused
            If a budget is spent, or the charge cannot be stored.
        """
        cost = self._section.cost
        parts = repr(cost).encode(), epoch, request.query, request.k.to_bytes(8)
        try:
            self._set_user_budget(user, max_queries)
            self._release(cost, user, b"query", *parts)
            if noise:
                drawn = hashlib.sha256(noise.encode()).digest()
                first = self._release(PureDP(Fraction(0)), user, b"noise", *parts, answer=drawn)
                if first != drawn:
                    self._release(cost, user, b"new noise", *parts, drawn)
        except BudgetExceeded:
            raise Refused(BUDGET_SPENT) from None
        except LedgerError as error:
            log.error("%s", error)
            raise Refused(LEDGER_FAILED) from None
        except ValueError:
            raise Refused(NO_USER) from None

    def _release(self, cost: Guarantee, user: str, *parts: bytes, answer: bytes = b"") -> bytes:
        """Charge for the parts once; return the stored answer.

        Replies are computed from the objects of the epoch, so that the ledger stores none.
        """
        digest = hashlib.sha256()
        for part in (user.encode(), *parts):
            digest.update(len(part).to_bytes(8) + part)
        return self._ledger.release(
            digest.hexdigest(),
            dataset=self._collection,
            user=user,
            cost=cost,
            draw=lambda: answer,
            purpose=parts[0].decode(),
        )

    def _set_user_budget(self, user: str, max_queries: int | None) -> None:
        """Set a user's budget in the ledger; by default that of all."""
        if not user:
            raise Refused(NO_USER)  # the empty name is that of all users
        number = self._section.max_queries if max_queries is None else max_queries
        budget, found = self._section.budget(number), self._ledger.budget(self._collection, user)
        if found != budget and not (found is None and max_queries is None):
            self._ledger.set_budget(self._collection, budget, user=user)
