"""The owner's policy of a collection, applied to each request and reply."""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._batch import NearestBatchRequest
from fedneighbors.methods.fedknn._filters import Where, filter_text
from fedneighbors.methods.fedknn._payloads import PayloadRequest
from fedneighbors.methods.fedknn._provider import PrivateRequest, Provider
from fedneighbors.methods.fedknn.private._padding import PaddedBoundRequest, PaddedNearestRequest
from fedneighbors.methods.fedknn.protocol import (
    BoundRequest,
    FinishRequest,
    NearestRequest,
    RangeCountReply,
    RangeCountRequest,
)
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.service._access_log import LOG_FAILED, AccessEntry, AccessLog, LogFailed
from fedneighbors.service._config import STEP_ERROR, GrantSection, PolicySection
from fedneighbors.service._query_budget import LEDGER_FAILED, QueryBudget
from fedneighbors.service._voter import Voter
from fedneighbors.service._votes import VoteReply, VoteRequest, round_votes

log = logging.getLogger(__name__)

NOT_ALLOWED = "the provider's policy does not allow this"
"""Code of the refusal of a kind of request, or of its size."""

QUOTA_SPENT = "the user's quota at the provider is spent; it is given again at midnight UTC"

OTHER_PURPOSE = "the provider's policy does not allow the stated purpose, or requires one"

SEEN_OFTEN = "the query would show an object to the user in more queries of a day than allowed"

FEW_ASKED = "the provider's policy asks for a larger k, and refuses searches within a radius"

FEW_APART = (
    "the filter and earlier ones of the user's day would tell apart fewer objects than the "
    "provider's policy allows"
)

OTHER_QUERY = "the request is of another query"

_FINDING = ("ids", "distances")  # levels of users who may search
_VOTING = ("label", "probabilities")
_MAX_GROUPS = 1000  # that the filters of a user tell apart; each costs a count for a new filter


def split_groups(
    groups: Sequence[tuple[Where, int]], where: Where, *, size: Callable[[Where], int], least: int
) -> list[tuple[Where, int]] | None:
    """Split groups of objects by a filter.

    Returns None if a group would be too small. All counts and results of the filters that made the
    groups are of unions of groups, so that no combination of them tells about fewer objects than
    the smallest group has.

    Parameters
    ----------
    groups : sequence of (mapping, int)
        Filter of each group, and its number of objects.
    where : mapping
        The filter.
    size : callable
        Counts the objects that meet a filter.
    least : int
        Minimum number of objects of a group.
    """
    found: list[tuple[Where, int]] = []
    for group, n_objects in groups:
        inside, outside = ({"and": [*group["and"], one]} for one in (where, {"not": where}))
        n_inside = size(inside)
        if not 0 < n_inside < n_objects:
            found.append((group, n_objects))
        elif min(n_inside, n_objects - n_inside) < least:
            return None
        else:
            found += [(inside, n_inside), (outside, n_objects - n_inside)]
    return found if len(found) <= _MAX_GROUPS else None


class PolicyParty:
    """A provider's objects behind the policy of their owner.

    Parameters
    ----------
    party : Provider or Voter
        The objects, or a classifier.
    collection : str
        Name of the collection.
    policy : PolicySection
        The policy.
    log : AccessLog, optional
        Takes each request, and keeps the quotas of users; required for quotas.
    ledger : Ledger, optional
        Takes the charges of private queries; without it, a policy with a budget refuses them.

    Attributes
    ----------
    user, query : str
        User and query of the next request, as the broker states them.
    groups, purpose : tuple of str, and str
        Groups of the user, and the stated purpose, as the broker states them.
    sealed : bytes
        The query as the broker has it, if it is sealed.
    noise : str
        Id of the noise of the query, as the broker states it; empty before it is drawn.
    k : int
        Number of neighbours of the query, as the broker states it; 0 for another kind of query.
    """

    def __init__(
        self,
        party: Provider | Voter,
        collection: str,
        policy: PolicySection,
        log: AccessLog | None = None,
        *,
        ledger: Ledger | None = None,
    ) -> None:
        self.name, self.user, self.query, self.sealed = party.name, "", "", b""
        self.groups: tuple[str, ...] = ()
        self.purpose, self.noise, self.k = "", "", 0
        # the service asks one query at a time, by its name
        others = NearestBatchRequest, FinishRequest
        self.accepts = tuple(one for one in party.accepts if one not in others)
        self._party, self._collection, self._policy, self._log = party, collection, policy, log
        self._returned: dict[str, int] = {}  # objects of each open query
        # for each user, the filters of the day and the groups that they tell apart
        self._groups: dict[str, tuple[list[str], list[tuple[Where, int]]]] = {}
        self._budget: QueryBudget | None = None
        if policy.privacy is not None:
            assert isinstance(party, Provider)  # the configuration was checked
            party.charge = self._charge
        if ledger is not None:
            self.charge_to(ledger)

    def charge_to(self, ledger: Ledger) -> None:
        """Charge private queries to a ledger, with the policy's budget."""
        if self._policy.privacy is not None:
            self._budget = QueryBudget(ledger, self._collection, self._policy.privacy)

    def answer(self, request: Message) -> Message:
        """Return the reply to a request, or refuse it."""
        outcome, n_queries, n_objects = "failed", 0, 0
        try:
            if request.name != self.query:
                raise Refused(OTHER_QUERY)
            grant = self._policy.grant_of(self.user, self.groups)
            self._check(request, grant)
            n_new = self._count_queries(request)
            n_rows = request.count if isinstance(request, VoteRequest) else 0  # known before
            self._check_quota(grant, n_new, n_rows)
            n_queries = n_new
            self._check_filter(request)
            if isinstance(request, PaddedNearestRequest):  # a search that fails goes on, too
                self._add_returned(request, _size_of(request))
            reply = self._ask(request, grant, n_queries)
            n_objects = _count_objects(request, reply)
            if not isinstance(request, PaddedNearestRequest):
                self._add_returned(request, n_objects)
            outcome = ""
            return reply
        except Refused as refused:
            outcome, n_objects = refused.code, 0
            raise
        except LogFailed as error:
            raise refuse_unlogged(error) from None
        finally:
            self.log_request(request, outcome, n_queries=n_queries, n_objects=n_objects)

    def log_request(
        self, request: Message, outcome: str, *, n_queries: int = 0, n_objects: int = 0
    ) -> None:
        """Add a request to the log, or refuse it."""
        if self._log is None:
            return
        try:
            self._log.append(self._describe(request, outcome, n_objects), n_queries=n_queries)
        except LogFailed as error:
            self._withhold(request)
            raise refuse_unlogged(error) from None

    def finish(self, names: tuple[str, ...]) -> None:
        """Close queries.

        A source that fails at the end of a query is only logged: others wait for their answers.
        """
        for name in names:
            self._returned.pop(name, None)
        self._close(names)

    def _close(self, names: tuple[str, ...]) -> None:
        with suppress(Refused):
            self._party.answer(FinishRequest(names))

    def _check(self, request: Message, grant: GrantSection) -> None:
        """Refuse a request that the policy does not allow."""
        policy, level = self._policy, grant.level
        if grant.purposes is not None and self.purpose not in grant.purposes:
            raise Refused(OTHER_PURPOSE)
        match request:
            case VoteRequest():
                allowed = level in _VOTING
            case RangeCountRequest(radius=None):
                allowed = level != "none"
            case RangeCountRequest(radius=float(radius)):
                # counts within radii would locate objects whose names the user knows
                shows_names = level in _FINDING and grant.views_per_day is not None
                allowed = level not in ("none", "ids") and not shows_names
                allowed = allowed and self._may_count(radius)
            case BoundRequest() | PaddedBoundRequest():
                allowed = level in _FINDING and policy.bounds
            case _:  # a broker needs cutoffs, but searches no radius without a count
                allowed = level in _FINDING
        is_private = isinstance(request, PrivateRequest)
        if policy.privacy is not None and not is_private:
            allowed = False
        if grant.views_per_day is not None and is_private:
            allowed = False  # a refusal of a reply would depend on the objects
        if not allowed:
            kind, place = type(request).__name__, self._collection
            raise Refused(NOT_ALLOWED, f"{kind} in {place!r} at the level {level!r}")
        k = request.k if isinstance(request, PrivateRequest) else self.k
        if k < grant.min_k and grant.min_k > 1 and not isinstance(request, RangeCountRequest):
            raise Refused(FEW_ASKED, f"at least {grant.min_k}")
        n_objects = _size_of(request)
        if isinstance(request, NearestRequest | PaddedNearestRequest):
            n_objects += self._returned.get(request.name, 0)
        if grant.max_k is not None and n_objects > grant.max_k:
            raise Refused(NOT_ALLOWED, f"more than {grant.max_k} objects of a query")
        if isinstance(request, PaddedNearestRequest) and n_objects > request.k:
            raise Refused(NOT_ALLOWED, f"more objects than the {request.k} nearest")  # not charged

    def _check_filter(self, request: Any) -> None:
        """Refuse a filter that, with earlier ones, tells few objects apart."""
        least, party = self._policy.min_difference, self._party
        if not least or isinstance(party, Voter):
            return
        where = party.read_filter(request.query)
        if where is None:
            return
        assert self._log is not None
        texts = self._log.filters(self._collection, self.user)
        known, groups = self._groups.get(self.user, (None, []))
        if known != texts:  # a new day, or a restart
            groups = [({"and": []}, party.size(None))]
            for text in texts:
                groups = self._split(groups, json.loads(text), least=1)
        found = self._split(groups, where, least=least)
        if len(found) > len(groups):
            text = filter_text(where)
            self._log.add_filter(self._collection, self.user, text)
            texts = sorted([*texts, text])
        self._groups[self.user] = texts, found

    def _split(
        self, groups: list[tuple[Where, int]], where: Where, *, least: int
    ) -> list[tuple[Where, int]]:
        assert isinstance(self._party, Provider)
        found = split_groups(groups, where, size=self._party.size, least=least)
        if found is None:
            raise Refused(FEW_APART)
        return found

    def _add_returned(self, request: Any, n_objects: int) -> None:
        self._returned[request.name] = self._returned.get(request.name, 0) + n_objects

    def _charge(self, request: PrivateRequest, epoch: bytes) -> None:
        """Charge for a private request before its search, or refuse it."""
        if self._budget is None:
            raise Refused(LEDGER_FAILED)
        grant = self._policy.grant_of(self.user, self.groups)
        self._budget.charge(
            request,
            epoch,
            user=self.user,
            max_queries=grant.private_queries,
            noise=self.noise if isinstance(request, PaddedNearestRequest) else "",
        )

    def _may_count(self, radius: float) -> bool:
        """Return whether objects within a radius may be counted."""
        policy = self._policy
        if policy.max_radius is not None and radius > policy.max_radius:
            return False
        step = policy.distance_step
        if not step:
            return True
        n_steps = radius / step
        return math.isfinite(n_steps) and abs(n_steps - round(n_steps)) < STEP_ERROR

    def _count_queries(self, request: Message) -> int:
        """Return the number of queries of a request that count.

        The radii of one query locate an object, so that each count is one.
        """
        return int(isinstance(request, RangeCountRequest) or request.name not in self._returned)

    def _check_quota(self, grant: GrantSection, n_queries: int, n_objects: int = 0) -> None:
        if grant.queries_per_day is None and grant.objects_per_day is None:
            return
        assert self._log is not None
        queries, objects = self._log.usage(self._collection, self.user)
        limits = grant.queries_per_day, grant.objects_per_day
        used = queries + n_queries, objects + n_objects
        if any(n > limit for n, limit in zip(used, limits, strict=True) if limit is not None):
            raise Refused(QUOTA_SPENT)

    def _ask(self, request: Any, grant: GrantSection, n_queries: int) -> Message:
        """Return the reply of the objects, or withhold it."""
        try:
            reply = self._limit(self._party.answer(request), grant)
            self._check_quota(grant, n_queries, _count_objects(request, reply))
            self._check_views(grant, request, reply)
        except Exception:
            self._withhold(request)
            raise
        return reply

    def _withhold(self, request: Any) -> None:
        """Close the query of a reply that is not sent.

        A later request would get the payload of its objects, or those after them.
        """
        self._close((request.name,))

    def _check_views(self, grant: GrantSection, request: Any, reply: Any) -> None:
        """Refuse a reply that shows an object in too many queries."""
        if grant.views_per_day is not None and isinstance(request, NearestRequest):
            assert self._log is not None
            shown = self._collection, self.user, request.query, reply.ids, grant.views_per_day
            if not self._log.add_views(*shown):
                raise Refused(SEEN_OFTEN)

    def _limit(self, reply: Message, grant: GrantSection) -> Message:
        """Return a reply with no more than the level allows."""
        if isinstance(reply, VoteReply):
            step = 1.0 if grant.level == "label" else self._policy.probability_step
            return replace(reply, probabilities=round_votes(reply.probabilities, step))
        if not isinstance(reply, RangeCountReply) or grant.level in _FINDING:
            return reply
        count = reply.count if reply.count >= self._policy.min_count else 0
        return replace(reply, count=min(count, 1) if grant.level == "boolean" else count)

    def _describe(self, request: Any, outcome: str, n_objects: int) -> AccessEntry:
        size = getattr(request, "radius", None)
        query = self.sealed or getattr(request, "query", b"")
        return AccessEntry(
            query=getattr(request, "name", ""),
            user=self.user,
            collection=self._collection,
            kind=type(request).__name__,
            size=_size_of(request) if size is None else size if math.isfinite(size) else None,
            outcome=outcome,
            n_objects=n_objects,
            digest=hashlib.sha256(query).hexdigest()[:16],
            purpose=self.purpose,
        )


def refuse_unlogged(error: LogFailed) -> Refused:
    """Return the refusal of a request that cannot be logged."""
    log.error("%s", error)
    return Refused(LOG_FAILED)


def _size_of(request: Any) -> int:
    """Return the number of objects or bounds that a request is for."""
    if isinstance(request, PayloadRequest):
        return 0  # for objects that were returned
    if isinstance(request, PaddedNearestRequest):
        return int(request.count[0])
    return int(getattr(request, "k", getattr(request, "count", 0)))


def _count_objects(request: Message, reply: Any) -> int:
    """Return the number of objects or rows; ``k`` if padded."""
    if isinstance(request, VoteRequest):
        return request.count
    if isinstance(request, PrivateRequest):
        return request.k if isinstance(request, PaddedNearestRequest) else 0
    return len(getattr(reply, "ids", ()))
