"""A provider's collections, and the queries that are open in them."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedneighbors.errors import DataError
from fedneighbors.federation._messages import encode
from fedneighbors.federation._roles import Refusal, serve_safely
from fedneighbors.methods.fedknn._provider import MAX_OPEN_QUERIES, Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query, read_json_query
from fedneighbors.methods.fedknn._sources import MemorySource
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.metrics._interfaces import Metric
from fedneighbors.methods.fedknn.metrics._sessions import LATE
from fedneighbors.methods.fedknn.protocol import BoundRequest, FinishRequest, NearestRequest
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.secure_sum._keys import digest
from fedneighbors.service._access_log import AccessLog
from fedneighbors.service._config import (
    LIMITS,
    GrantSection,
    OfferSection,
    PolicySection,
    ProviderConfig,
)
from fedneighbors.service._loading import (
    NOTHING_FORGOTTEN,
    Forgotten,
    compute_epoch,
    read_source,
)
from fedneighbors.service._messages import (
    UNKNOWN_QUERY,
    LinkRequest,
    OfferedCollection,
    OfferedGrant,
)
from fedneighbors.service._oidc import OidcUsers
from fedneighbors.service._policy import PolicyParty
from fedneighbors.service._sealed_party import SealedParty
from fedneighbors.service._source_config import ModelSection, PushedSection
from fedneighbors.service._voter import Voter, read_voter
from fedneighbors.sources._candidates import CandidateSource, SourceSettings
from fedneighbors.sources._pushed import PushedSource, find_source
from fedneighbors.sources._sql import SqlQuery

IDLE_S = 60.0
"""Seconds after its last request and its deadline, after which a query is closed."""


class OfferedObjects:
    """A collection of a provider, and the queries that are open in it.

    Parameters
    ----------
    party : Provider or Voter
        The objects, or a classifier.
    offer : OfferedCollection
        Its description for the broker.
    epoch : str, optional
        Hexadecimal id of this version of the objects, if it survives restarts.
    release : callable
        Closes what the objects are read from.
    policy : PolicySection, optional
        Limits of the owner; none by default.
    log : AccessLog, optional
        Takes each request, and keeps the quotas of users.
    ledger : Ledger, optional
        Takes the charges of private queries.

    Attributes
    ----------
    notes, examples : tuple of str and mapping of str to str
        Cells of the rows outside of their schema, as of :class:`SourceContent`.
    """

    def __init__(
        self,
        party: Provider | Voter,
        offer: OfferedCollection,
        epoch: str | None = None,
        release: Callable[[], None] = lambda: None,
        *,
        policy: PolicySection | None = None,
        log: AccessLog | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.policy = policy = policy or PolicySection()
        self.party, self.epoch, self.release = party, epoch, release
        self.notes: tuple[str, ...] = ()
        self.examples: Mapping[str, str] = {}
        self.offer = _add_policy(offer, policy)
        self.retired_at = math.inf  # set when the objects are replaced
        self._guarded = PolicyParty(party, offer.name, policy, log, ledger=ledger)
        self._served: PolicyParty | SealedParty = self._guarded
        self._candidates: CandidateSource | None = None
        # number of requests, and the later of the time and the deadline of the last
        self._steps: OrderedDict[str, tuple[int, float]] = OrderedDict()

    @classmethod
    def read(
        cls,
        provider: str,
        name: str,
        section: OfferSection,
        folder: Path,
        *,
        secret: bytes,
        on_query: Callable[[SqlQuery], None] = lambda _: None,
        log: AccessLog | None = None,
        ledger: Ledger | None = None,
        forgotten: Path | None = None,
    ) -> "OfferedObjects":
        """Read the objects of a collection, and build their index.

        Parameters
        ----------
        provider, name : str
            Names of the provider and of the collection.
        section : OfferSection
            Configuration.
        folder : path
            Folder to which files are relative.
        secret : bytes
            Secret of the provider that survives restarts. The epoch of the objects is derived from
            it and their content, so that a private query is charged once.
        on_query : callable
            Called with the query to a database before it is run.
        log, ledger : AccessLog and Ledger, optional
            As for the class.
        forgotten : path, optional
            File with digests of the objects that are left out.

        Raises
        ------
        DataError
            If the source is invalid.
        """
        if isinstance(section.source, PushedSection):
            return cls._open(provider, name, section, section.source, folder, secret, log, ledger)
        schema = section.read_schema(folder)
        if isinstance(section.source, ModelSection):
            assert schema is not None  # the configuration was checked
            voter = read_voter(provider, name, section.source, schema, folder=folder, secret=secret)
            offer, version = describe_offer(name, section, schema.digest, 1), voter.epoch_of("")
            return cls(voter, offer, version.hex(), policy=section.policy, log=log)
        source = read_source(section, section.source, folder, on_query, schema)
        left_out = NOTHING_FORGOTTEN
        if forgotten is not None:
            left_out = Forgotten.read(forgotten, name)
            source = source.without(left_out)
        columns = "" if schema is None else schema.digest
        epoch = compute_epoch(secret, f"{name}{columns}", section, source)
        metric = metric_of(schema or section.metric)
        objects = MemorySource(
            source.items,
            metric,
            owner=provider,
            epoch=None if epoch is None else bytes.fromhex(epoch),
            ids=source.ids,
            key=_tie_key(section, secret),
            columns=source.columns,
            payload=source.payload,
        )
        party = Provider(
            provider, objects, decode=decode_query, min_filtered=section.policy.least_filtered
        )
        n_objects = len(source.items)
        if n_objects:
            search_once(party, source.items[0])
        offer = describe_offer(name, section, columns, n_objects, source.items)
        offer = replace(offer, n_forgotten=len(left_out.digests))
        found = cls(party, offer, epoch, policy=section.policy, log=log, ledger=ledger)
        found.notes, found.examples = source.notes, source.examples
        found._seal(secret, metric, section)
        return found

    @classmethod
    def _open(
        cls,
        provider: str,
        name: str,
        section: OfferSection,
        source: PushedSection,
        folder: Path,
        secret: bytes,
        log: AccessLog | None,
        ledger: Ledger | None,
    ) -> Self:
        """Open a collection whose objects stay in a database."""
        if section.schema_file is not None:
            raise DataError(f"a source of kind {source.kind!r} has no rows; use a file or sql")
        kinds: dict[str, str] = dict(section.filters)
        options = source.model_extra or {}
        candidates = find_source(source.kind)(
            SourceSettings(section.metric, options, kinds, section.policy.payload, folder)
        )
        with ExitStack() as opened:  # closed after an error
            opened.callback(candidates.close)
            pushed = PushedSource(
                candidates,
                metric_of(section.metric),
                owner=provider,
                key=_tie_key(section, secret),
                # an equal version under other settings may be one of other objects
                secret=secret + repr([name, source.kind, sorted(options.items()), kinds]).encode(),
                filters=kinds,
            )
            party = Provider(
                provider, pushed, decode=decode_query, min_filtered=section.policy.least_filtered
            )
            if candidates.sample is not None:
                query = pushed.open(candidates.sample[0], None)  # its errors tell what is wrong
                query.next(1)
                query.close()
            n_objects = pushed.size(None)
            opened.pop_all()
        offer = describe_offer(name, section, "", n_objects, candidates.sample)
        release, policy = candidates.close, section.policy
        found = cls(party, offer, release=release, policy=policy, log=log, ledger=ledger)
        found._candidates = candidates
        found._seal(secret, metric_of(section.metric), section)
        return found

    def _seal(self, secret: bytes, metric: Metric, section: OfferSection) -> None:
        """Answer only sealed queries, if the collection is sealed."""
        if section.trust == "sealed":
            self._served = SealedParty(
                self._guarded,
                self.offer.name,
                secret=secret,
                read_query=lambda value: read_json_query(value, section.metric, metric),
                users=None if section.oidc is None else OidcUsers(section.oidc),
            )

    def answer(self, request: LinkRequest, deadline: float) -> bytes:
        """Return the frame of the reply to a request.

        Parameters
        ----------
        request : LinkRequest
            The request.
        deadline : float
            Monotonic time at which the search stops, or after which it is not started.
        """
        if time.monotonic() > deadline:
            return encode(Refusal(LATE, ""))
        step, _ = self._steps.get(request.query, (0, 0.0))
        if step != request.step:
            return encode(Refusal(UNKNOWN_QUERY, ""))
        if step == 0 and len(self._steps) >= MAX_OPEN_QUERIES:
            self.drop_old()
        self.party.end = deadline
        self._guarded.user, self._guarded.query = request.user, request.query
        self._guarded.groups, self._guarded.purpose = request.groups, request.purpose
        self._guarded.noise, self._guarded.k = request.noise, request.k
        if self._candidates is not None:
            self._candidates.purpose = request.purpose
        frame = serve_safely(self._served, request.body)
        self._steps[request.query] = step + 1, max(time.monotonic(), deadline)
        self._steps.move_to_end(request.query)
        return frame

    def charge_to(self, ledger: Ledger) -> None:
        """Charge private queries to a ledger, with the policy's budget."""
        self._guarded.charge_to(ledger)

    def offer_under(self, policy: PolicySection) -> OfferedCollection:
        """Return the description of the objects under another policy."""
        return _add_policy(self.offer, policy)

    def has(self, query: str) -> bool:
        """Return whether a query is open."""
        return query in self._steps

    @property
    def is_used(self) -> bool:
        """Return whether queries are open, after closing idle ones."""
        self.drop_old()
        return bool(self._steps)

    def drop_old(self) -> None:
        """Close queries that are idle, too many, or of replaced objects.

        The latter are open for a while.
        """
        oldest = time.monotonic() - IDLE_S
        if self.retired_at < oldest:
            self.close_all()
        idle = [query for query, (_, until) in self._steps.items() if until < oldest]
        surplus = max(len(self._steps) - len(idle) - MAX_OPEN_QUERIES + 1, 0)
        self.close((*idle, *list(self._steps)[:surplus]))

    def close(self, queries: tuple[str, ...]) -> None:
        """Close the queries that are open."""
        known = tuple(query for query in queries if self._steps.pop(query, None))
        if known:
            self._served.finish(known)

    def close_all(self) -> None:
        """Close all queries."""
        self.close(tuple(self._steps))


class CollectionReader:
    """Reads the collections of a provider's configuration, and its policies again.

    Parameters
    ----------
    config : ProviderConfig
        The configuration.
    secret : bytes
        Secret of the provider, as for :meth:`OfferedObjects.read`.
    file : path, optional
        Its file; without it, policies stay.

    Raises
    ------
    LedgerError
        If the ledger is damaged, or is another provider's.
    """

    def __init__(self, config: ProviderConfig, secret: bytes, file: Path | None = None) -> None:
        self._config, self._secret, self._file = config, secret, file
        self._log, self._ledger = AccessLog(config.path(config.provider.log)), config.open_ledger()

    def read(self, on_query: Callable[[SqlQuery], None]) -> dict[str, OfferedObjects]:
        """Read the collections under the latest policies.

        ``on_query`` is called with each query to a database before it is run.
        """
        return self._read(self._config, on_query)

    def read_policies(self, on_query: Callable[[SqlQuery], None]) -> dict[str, OfferedObjects]:
        """Read the policies of the file, and then the collections.

        Raises
        ------
        DataError
            If the file is invalid, or differs from the configuration in more than policies.
        """
        if self._file is None:
            return self.read(on_query)
        new = ProviderConfig.read(self._file)
        _check_unchanged(self._config, new, self._file)
        self._ledger = self._ledger or new.open_ledger()
        found = self._read(new, on_query)
        self._config = new
        return found

    def _read(
        self, config: ProviderConfig, on_query: Callable[[SqlQuery], None]
    ) -> dict[str, OfferedObjects]:
        found = {}
        with ExitStack() as opened:  # closed after an error
            for name, one in config.collections.items():
                found[name] = OfferedObjects.read(
                    config.provider.name,
                    name,
                    one,
                    config.folder,
                    secret=self._secret,
                    on_query=on_query,
                    log=self._log,
                    forgotten=config.forgotten_file,
                )
                opened.callback(found[name].release)
            if self._ledger is not None:  # after an error, it has the former budgets
                for offered in found.values():
                    offered.charge_to(self._ledger)
            opened.pop_all()
        return found


def _check_unchanged(old: ProviderConfig, new: ProviderConfig, file: Path) -> None:
    """Raise DataError if configurations differ in more than policies."""
    if list(old.collections) != list(new.collections):
        changed = "collections"
    else:
        pairs: list[tuple[str, Any, Any]] = [
            ("provider", old.provider, new.provider),
            ("attestation", old.attestation, new.attestation),
        ]
        for name, one in old.collections.items():
            same = one.model_copy(update={"policy": new.collections[name].policy})
            pairs.append((f"collections.{name}", same, new.collections[name]))
        changed = next((place for place, one, other in pairs if one != other), "")
    if changed:
        raise DataError(
            f"{file}: {changed} was changed, and only policies are read again while the provider "
            "runs; restart it"
        )


def describe_offer(
    name: str, section: OfferSection, schema: str, n_objects: int = 0, objects: Any = None
) -> OfferedCollection:
    """Return the description of a collection for the broker.

    Parameters
    ----------
    name, schema : str
        Name of the collection, and digest of the columns of rows.
    section : OfferSection
        Configuration.
    n_objects : int
        Number of objects.
    objects : sequence, optional
        The objects or some of them.
    """
    is_table = isinstance(objects, np.ndarray) and objects.ndim == 2
    offer = OfferedCollection(
        name,
        section.metric,
        section.tie_key,
        n_objects,
        dict(section.filters),
        schema,
        n_columns=objects.shape[1] if is_table else 0,
        trust=section.trust,
    )
    return _add_policy(offer, section.policy)


def _add_policy(offer: OfferedCollection, policy: PolicySection) -> OfferedCollection:
    """Return an offer that states the rights of users and groups."""
    grants = [_state_grant(f"user {name}", grant) for name, grant in policy.users.items()]
    grants += [_state_grant(f"group {name}", grant) for name, grant in policy.groups.items()]
    grants.append(_state_grant("", policy))
    if policy.privacy is not None:
        offer = replace(offer, epsilon=policy.privacy.epsilon, delta=policy.privacy.delta)
    return replace(
        offer,
        distance_step=policy.distance_step,
        area=policy.area,
        grants=tuple(one for one in grants if one.level is not None or one.limits),
    )


def _state_grant(name: str, grant: GrantSection) -> OfferedGrant:
    """Return the rights of a user, a group or everybody."""
    stated = grant.model_fields_set
    numbers = {limit: getattr(grant, limit) for limit in LIMITS if limit in stated}
    limits = {limit: number for limit, number in numbers.items() if number is not None}
    return OfferedGrant(name, None if name and "level" not in stated else grant.level, limits)


def _tie_key(section: OfferSection, secret: bytes) -> bytes:
    """Return the key of ties, secret in a sealed collection.

    The order under a public one would let the broker guess names.
    """
    if section.trust != "sealed":
        return section.tie_key.encode()
    return digest("secret tie key", secret, section.tie_key)


def search_once(party: Provider, item: Any) -> None:
    """Run a query, so that no user waits for compilers."""
    name, query = "warm-up", encode_query(item)
    for request in (
        BoundRequest(name, query, 1),
        NearestRequest(name, query, 1, None),
        FinishRequest((name,)),
    ):
        party.answer(request)
