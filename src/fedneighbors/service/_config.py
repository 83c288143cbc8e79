"""Configuration files of the broker and of providers (TOML).

Unknown keys are errors. Paths are relative to the folder of the file.
"""

import math
from collections import ChainMap
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError

from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._schema_columns import SetColumn
from fedneighbors.datasets._table import join_names, suggest
from fedneighbors.errors import DataError
from fedneighbors.methods.fedknn._settings import compose
from fedneighbors.privacy._guarantees import Guarantee
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.service._attestation import AmdRules, IntelRules
from fedneighbors.service._source_config import (
    SECRET,
    VOTES,
    Config,
    ConfigSection,
    Flag,
    ModelSection,
    Number,
    PatientsSection,
    PushedSection,
    SourceSection,
    Whole,
    check_metric,
    name_section,
)

Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
Text = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""A purpose, in one line."""

Filters = dict[str, Literal["number", "text", "boolean", "molecule"]]
"""Columns for the filters of queries, and the kind of their cells."""

Algorithm = Literal["auto", "baseline", "dann", "dann*", "eager", "hufu", "hufu+"]
STEP_ERROR = 1e-9
"""Relative tolerance of multiples of a distance step: 0.3 is no exact multiple of 0.1."""

Level = Literal["none", "boolean", "count", "ids", "distances", "label", "probabilities"]
_VOTING = ("none", "label", "probabilities")  # levels of collections of voters
_MIN_STEP = 1e-6  # a finer one of probabilities tells nothing more


def _has_enclave(sections: Iterable["SharedSection"]) -> bool:
    return any(one.trust == "enclave" for one in sections)


class PrivacySection(ConfigSection):
    """Privacy cost of a query, for ``dann*``."""

    epsilon: Number = Field(gt=0)
    delta: Number = Field(default=0.0, ge=0, lt=1)
    guarantee: Literal["exact", "certified"] = "exact"
    max_queries: Whole = Field(default=100, ge=1)
    grid_s: Number = Field(default=0.05, ge=0)
    ledger: str | None = None


class SharedSection(ConfigSection):
    """Settings of a collection that broker and providers agree on.

    ``schema`` is the file that declares the columns of rows, for the metric ``tabular``, and their
    classes, for ``votes``. The order of tied objects depends on ``tie_key``, a public text. With
    ``trust = "sealed"``, the broker reads neither queries nor names nor payloads of objects; with
    ``"enclave"``, providers join it only in a confidential virtual machine.
    """

    metric: str
    schema_file: str | None = Field(default=None, alias="schema")
    tie_key: str = ""
    trust: Literal["trusted", "sealed", "enclave"] = "trusted"
    filters: Filters = Field(default_factory=dict)

    _metric = field_validator("metric")(check_metric)

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if (self.metric in ("tabular", VOTES)) != (self.schema_file is not None):
            raise PydanticCustomError(
                SECRET, "expected schema, the file of the columns, with metric 'tabular' or 'votes'"
            )
        if self.metric == VOTES and (self.trust == "sealed" or self.filters):
            raise PydanticCustomError(SECRET, "votes are averaged: omit filters, and sealed trust")
        return self

    def read_schema(self, folder: Path) -> Schema | None:
        """Return the columns of rows; None for other objects.

        Raises
        ------
        DataError
            If the file is no schema, or none for votes.
        MissingDataError
            If it does not exist.
        """
        if self.schema_file is None:
            return None
        schema = Schema.load(folder / self.schema_file)
        if self.metric != VOTES:
            return replace(schema, name="", label="", classes=())
        if not schema.classes or any(isinstance(one, SetColumn) for one in schema.columns):
            raise DataError(
                f"{self.schema_file}: expected label and classes for votes, and columns of numbers "
                "and categories only"
            )
        return replace(schema, name="")


class CollectionSection(SharedSection):
    """A collection of the broker, searched over its providers."""

    providers: tuple[Name, ...] = Field(min_length=1)
    algorithm: Algorithm = "auto"
    allow_partial: Flag = False
    privacy: PrivacySection | None = None

    @model_validator(mode="after")
    def _check_trust(self) -> Self:
        if self.trust == "sealed" and self.privacy is not None:
            raise PydanticCustomError(
                SECRET, "a sealed collection cannot be private: omit privacy or trust"
            )
        if self.metric == VOTES and self.privacy is not None:
            raise PydanticCustomError(SECRET, "votes are not private: omit privacy")
        return self


class ServerSection(ConfigSection):
    """The one port: REST and links of providers.

    A self-signed certificate for ``names`` is made, unless ``certificate`` and ``key`` are given.
    Without ``tls``, the broker speaks HTTP; ``certificate`` is then that of a proxy before it.
    """

    listen: str = Field(default="127.0.0.1:8443", pattern=r"^[^:]*:[0-9]{1,5}$")
    tls: Flag = True
    names: tuple[str, ...] = ()
    certificate: str | None = None
    key: str | None = None
    heartbeat_s: Number = Field(default=1.0, gt=0)

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port."""
        host, _, port = self.listen.rpartition(":")
        return host, int(port)

    @property
    def url(self) -> str:
        """Return the address for users."""
        host, port = self.address
        name = self.names[0] if self.names else host or "127.0.0.1"
        return f"{'https' if self.tls else 'http'}://{name}:{port}"


class QueriesSection(ConfigSection):
    """Limits of queries."""

    deadline_s: Number = Field(default=30.0, gt=0)
    max_deadline_s: Number = Field(default=600.0, gt=0)
    max_concurrent: Whole = Field(default=64, ge=1)
    max_k: Whole = Field(default=10_000, ge=1)
    retries: Whole = Field(default=1, ge=0, le=5)


SCOPES = ("search", "count", "metrics", "admin")
"""Rights of a token: searches, counts and metrics; counts; metrics; or to operate the broker."""


def check_scope(scope: str, collections: Collection[str]) -> None:
    """Raise ValueError if a scope or its collection is unknown."""
    right, colon, collection = scope.partition(":")
    if right not in (SCOPES[:2] if colon else SCOPES):
        raise ValueError(
            f"expected a scope such as search or count:COLLECTION, got {scope!r}"
            + suggest([right], SCOPES)
        )
    if colon and collection not in collections:
        raise ValueError(
            f"scope {scope!r}: expected a collection among {join_names(collections)}"
            + suggest([collection], collections)
        )


class OidcSection(ConfigSection):
    """Users of a login service, by OpenID Connect.

    A token must be of the issuer, for the audience. ``user_claim`` has the name of the user;
    ``groups`` are scopes for the values of ``groups_claim``, by default everything for everybody.
    """

    issuer: str = Field(pattern=r"^(https://|http://(127\.0\.0\.1|localhost|\[::1\])[:/])")
    audience: str = Field(min_length=1)
    user_claim: str = Field(default="sub", min_length=1)
    groups_claim: str = "groups"
    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class AttesterSection(ConfigSection):
    """Evidence of the broker's machine: the kernel's interface, and certificates of AMD's key."""

    folder: str = "/sys/kernel/config/tsm/report"
    certificates: str | None = None


class MatchmakerSection(ConfigSection):
    """The GA4GH Matchmaker Exchange API; the contact is that of all returned patients."""

    collection: Name
    contact_name: Text
    contact_href: str = Field(pattern=r"^(https?://|mailto:)\S+$")
    max_results: Whole = Field(default=10, ge=1)
    purpose: Text | None = None


class BrokerConfig(Config):
    """Configuration of a broker."""

    state: str = "state/broker.sqlite"
    log: str = "state/broker.log.sqlite"
    server: ServerSection = ServerSection()
    queries: QueriesSection = QueriesSection()
    oidc: OidcSection | None = None
    attestation: AttesterSection = AttesterSection()
    matchmaker: MatchmakerSection | None = None
    collections: dict[Name, CollectionSection] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_enclave(self) -> Self:
        if _has_enclave(self.collections.values()) and not self.server.tls:
            raise PydanticCustomError(
                SECRET, 'expected server.tls: with trust = "enclave", TLS ends in the broker'
            )
        return self

    @model_validator(mode="after")
    def _check_scopes(self) -> Self:
        for scopes in [] if self.oidc is None else self.oidc.groups.values():
            for scope in scopes:
                try:
                    check_scope(scope, self.collections)
                except ValueError as error:
                    raise PydanticCustomError(SECRET, f"oidc.groups: {error}") from None
        return self


class PrivateSection(ConfigSection):
    """Cost of a private query, as the owner states it, and the number of such queries.

    ``max_queries`` is for all users together; a grant may have fewer.
    """

    epsilon: Number = Field(gt=0, allow_inf_nan=False)
    delta: Number = Field(default=0.0, ge=0, lt=1)
    max_queries: Whole = Field(ge=0)

    @model_validator(mode="after")
    def _check_budget(self) -> Self:
        self.budget(self.max_queries)
        return self

    @property
    def cost(self) -> Guarantee:
        """Return the cost of a query."""
        return Privacy(self.epsilon, delta=self.delta).total

    def budget(self, n_queries: int) -> Guarantee:
        """Return the cost of a number of queries."""
        return compose(self.cost, n_queries)

    def count_queries(self, budget: Guarantee) -> int:
        """Return the number of queries whose cost is within a budget."""
        pairs = zip(vars(budget).values(), vars(self.cost).values(), strict=False)
        return min(int(allowed // cost) for allowed, cost in pairs)


class GrantSection(ConfigSection):
    """Rights of a user in a collection.

    ``level`` allows nothing, only whether objects are within a radius, how many, the order of the
    nearest, or their distances too. With ``ids``, radii are refused, which tell about distances.
    Votes need ``label`` or ``probabilities``; their rows count as objects. ``max_k`` limits the
    objects of a query; a search must be for the ``min_k`` nearest or more, and not for those within
    a radius. Quotas are of one user and day (UTC); ``views_per_day`` is the number of different
    queries that may show the same object; with it, users who may search get no radii and no private
    searches. ``private_queries`` is the number of private queries for good. Queries must state one
    of the ``purposes``, if there are any.
    """

    level: Level = "ids"
    max_k: Whole | None = Field(default=None, ge=1)
    min_k: Whole = Field(default=1, ge=1)
    queries_per_day: Whole | None = Field(default=None, ge=0)
    objects_per_day: Whole | None = Field(default=None, ge=0)
    views_per_day: Whole | None = Field(default=None, ge=1)
    private_queries: Whole | None = Field(default=None, ge=0)
    purposes: tuple[Text, ...] | None = Field(default=None, min_length=1)


LIMITS = (
    "max_k", "min_k", "queries_per_day", "objects_per_day", "views_per_day", "private_queries",
)  # fmt: skip
"""Rights with a number, which a provider states in its offer."""


_Longitude = Annotated[Number, Field(ge=-180, le=180)]
_Latitude = Annotated[Number, Field(ge=-90, le=90)]


class PolicySection(GrantSection):
    """Limits of what a provider gives away.

    ``payload`` names the columns that are returned with found objects. A filter must leave at least
    ``min_filtered`` objects, and leave out as many, or none. All filters of a user and day (UTC)
    together must not tell apart groups of fewer than ``min_difference`` objects. Users who may only
    count see counts below ``min_count`` as 0; radii above ``max_radius`` are refused. Without
    ``bounds``, no lower bounds are sent, which tell about distances. With ``privacy``, only private
    searches are answered, within a budget. Users who may see distances see them rounded up to
    multiples of ``distance_step``; radii of counts must be such multiples. Probabilities of votes
    are rounded to multiples of ``probability_step``. ``area`` has the west, south, east and north
    end of places, which users see before a search. ``users`` replaces fields for users by name, and
    ``groups`` for their members: fields of ``users`` come first, then those of the groups in this
    order.
    """

    payload: tuple[str, ...] = ()
    min_filtered: Whole = Field(default=0, ge=0)
    min_difference: Whole = Field(default=0, ge=0)
    min_count: Whole = Field(default=0, ge=0)
    max_radius: Number | None = Field(default=None, allow_inf_nan=False)
    bounds: Flag = True
    privacy: PrivateSection | None = None
    distance_step: Number = Field(default=0.0, ge=0, allow_inf_nan=False)
    probability_step: Number = Field(default=0.0, ge=0, le=1)
    area: tuple[_Longitude, _Latitude, _Longitude, _Latitude] | None = None
    users: dict[str, GrantSection] = Field(default_factory=dict)
    groups: dict[str, GrantSection] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_private_queries(self) -> Self:
        grants: list[GrantSection] = [self, *self.users.values(), *self.groups.values()]
        if self.privacy is None and any(one.private_queries is not None for one in grants):
            raise PydanticCustomError(
                SECRET, "expected privacy, the cost of a private query, next to private_queries"
            )
        if self.privacy is not None and any(one.views_per_day is not None for one in grants):
            raise PydanticCustomError(
                SECRET, "views of private searches are not counted: omit views_per_day, or privacy"
            )
        return self

    @field_validator("probability_step")
    @classmethod
    def _check_step(cls, step: float) -> float:
        is_part = step >= _MIN_STEP and math.isclose(1 / step, round(1 / step), rel_tol=STEP_ERROR)
        if step and not is_part:
            raise ValueError(f"expected 0, or at least {_MIN_STEP:g} and 1 by a whole number")
        return step

    @property
    def least_filtered(self) -> int:
        """Return the number of objects that a filter must leave."""
        return max(self.min_filtered, self.min_difference)

    def grant_of(self, user: str, groups: Collection[str] = ()) -> GrantSection:
        """Return the rights of a user who is a member of groups."""
        found = [grant for name, grant in self.groups.items() if name in groups]
        found[:0] = [self.users[user]] if user in self.users else []
        fields = ChainMap(*(grant.model_dump(exclude_unset=True) for grant in found))
        return self.model_copy(update=dict(fields)) if found else self


class OfferSection(SharedSection):
    """A collection that a provider offers.

    With ``oidc``, a sealed query must contain a token of the issuer for this provider, so that the
    provider takes user and groups from it.
    """

    source: Annotated[
        Annotated[SourceSection, Tag("loaded")]
        | Annotated[PatientsSection, Tag("patients")]
        | Annotated[ModelSection, Tag("model")]
        | Annotated[PushedSection, Tag("pushed")],
        Discriminator(name_section),
    ]
    policy: PolicySection = PolicySection()
    oidc: OidcSection | None = None

    @model_validator(mode="after")
    def _check_trust(self) -> Self:
        if isinstance(self.source, PatientsSection) and self.metric != "tabular":
            raise PydanticCustomError(SECRET, "expected metric 'tabular' for rows of patients")
        if (area := self.policy.area) and (self.metric != "haversine" or area[1] > area[3]):
            raise PydanticCustomError(SECRET, "expected area as west, south, east, north of places")
        if self.trust != "sealed" and self.oidc is not None:
            raise PydanticCustomError(
                SECRET, 'expected trust = "sealed" next to oidc: a broker could use the tokens'
            )
        if self.trust == "sealed" and self.policy.privacy is not None:
            raise PydanticCustomError(
                SECRET, "a sealed collection cannot be private: omit policy.privacy or trust"
            )
        return self

    @model_validator(mode="after")
    def _check_votes(self) -> Self:
        policy, is_voting = self.policy, self.metric == VOTES
        if is_voting != isinstance(self.source, ModelSection):
            raise PydanticCustomError(SECRET, "expected kind = 'model' with metric 'votes' only")
        grants = [policy, *policy.users.values(), *policy.groups.values()]
        levels = {one.level for one in grants if one is policy or "level" in one.model_fields_set}
        if is_voting and not levels <= {*_VOTING}:
            raise PydanticCustomError(SECRET, f"expected a level of {', '.join(_VOTING)}")
        if not is_voting and levels & {*_VOTING[1:]}:
            raise PydanticCustomError(SECRET, f"the levels {', '.join(_VOTING[1:])} are for votes")
        if is_voting and (policy.privacy is not None or any(one.min_k > 1 for one in grants)):
            raise PydanticCustomError(SECRET, "votes are not private: omit privacy and min_k")
        return self


class ProviderSection(ConfigSection):
    """The provider, and its broker, whose certificate is stored at the enrolment.

    The collections are read again every ``reload_s`` seconds. ``log`` is the log of queries,
    ``ledger`` that of private ones, with their budgets.
    """

    name: Name
    broker: str = Field(pattern=r"^https?://[^/]+/?$")
    key: str = "state/provider.pem"
    certificate: str = "state/broker.crt"
    log: str = "state/provider.log.sqlite"
    ledger: str = "state/provider.ledger.sqlite"
    reload_s: Number | None = Field(default=None, ge=1)


class ProviderConfig(Config):
    """Configuration of a provider.

    ``attestation`` has the rules for the broker's evidence.
    """

    provider: ProviderSection
    attestation: AmdRules | IntelRules | None = Field(default=None, discriminator="vendor")
    collections: dict[Name, OfferSection] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_enclave(self) -> Self:
        is_bound = self.attestation and self.provider.broker.startswith("https:")
        if _has_enclave(self.collections.values()) and not is_bound:
            raise PydanticCustomError(
                SECRET, 'expected attestation and a broker https://..., with trust = "enclave"'
            )
        return self

    def open_ledger(self, *, must_exist: bool = False) -> Ledger | None:
        """Open the ledger of private queries; None if no policy needs it.

        Parameters
        ----------
        must_exist : bool
            Raise instead of creating it.

        Raises
        ------
        LedgerError
            If the file is missing or damaged, or is another provider's.
        """
        if all(one.policy.privacy is None for one in self.collections.values()):
            return None
        path = self.path(self.provider.ledger)
        path.parent.mkdir(parents=True, exist_ok=True)
        return Ledger(path, party=self.provider.name, must_exist=must_exist)

    @property
    def forgotten_file(self) -> Path:
        """Return the path of the digests of forgotten objects, one a line."""
        return self.path(self.provider.key).with_name("forgotten")

    @property
    def pause_file(self) -> Path:
        """Return the path of the file that pauses the provider."""
        return self.path(self.provider.key).with_name("paused")
