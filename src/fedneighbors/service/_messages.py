"""Messages of a link between a provider and the broker.

A link is a WebSocket that the provider opens. The broker sends a :class:`Challenge`, the provider
a signed :class:`Hello`, and the broker a :class:`Welcome` or a
:class:`~fedneighbors.federation._roles.Refusal`. A provider that demands a confidential virtual
machine first sends an :class:`EvidenceRequest`, and its hello only after valid :class:`Evidence`.
Then the broker sends any number of
:class:`LinkRequests`, and the provider :class:`LinkReplies`, and :class:`ChangedOffers` after a
reload. A refusal ends the link.

The signature contains the digest of the server certificate that the provider received (channel
binding, RFC 5929), so that a link over somebody else's server is rejected.
"""

import math
import secrets
from collections import ChainMap, deque
from collections.abc import Collection
from typing import Any

from fedneighbors.federation._messages import encode, message
from fedneighbors.privacy._accounting import fits
from fedneighbors.privacy._guarantees import Guarantee
from fedneighbors.privacy._policy import Privacy
from fedneighbors.secure_sum._keys import Identity, digest

VERSION = 4
"""Version of this protocol."""

MAX_LINK_FRAME_BYTES = 8 << 20
"""Maximum size of a message on a link."""

MAX_REPLY_BYTES = 6 << 20
"""Maximum size of a reply, which may be sent together with up to 1 MiB of others."""

MAX_LINK_VALUES = 1 << 16
"""Maximum number of values in a provider's message, see :func:`decode`; replies are bytes."""

MAX_EVIDENCE_BYTES = 1 << 16
"""Maximum size of evidence, which nobody has verified yet."""

_MAX_BATCH_BYTES = 1 << 20  # a longer frame is sent alone
NONCE_BYTES = 32

NOT_ENROLLED = (
    "the provider is not enrolled, its key is revoked, or it was connected to another server "
    "certificate"
)
"""Code of a refusal of a provider's signature."""

OTHER_VERSION = "the first message is not a hello of this version"
"""Code of a refusal of a hello that cannot be decoded."""

UNKNOWN_QUERY = "unknown query"
"""Code of a refusal to continue a query whose state a provider does not have."""

TOO_LONG = "a name, the purpose or the groups of the user are too long"
"""Code of a refusal of a request with strings that no broker sends."""

MAX_USER_LENGTH, MAX_GROUPS_LENGTH = 200, 16_384
"""Maximum number of characters of the name of a user, and of the names of all its groups."""

_MAX_LENGTHS = {"collection": 64, "query": 64, "noise": 64, "purpose": 100, "trace": 64}

TOO_LARGE = "the reply is too large for a message; ask for fewer objects, or without payloads"
"""Code of a refusal of a request with a long reply."""

UNKNOWN_COLLECTION = "unknown collection"
"""Code of a refusal of a collection that the provider does not offer."""


@message
class Challenge:
    """Random bytes for the provider's signature."""

    version: int
    nonce: bytes

    @classmethod
    def new(cls) -> "Challenge":
        """Return a challenge with random bytes."""
        return cls(VERSION, secrets.token_bytes(NONCE_BYTES))


@message
class EvidenceRequest:
    """A provider's random bytes for the broker's evidence."""

    nonce: bytes

    def __post_init__(self) -> None:
        if len(self.nonce) != NONCE_BYTES:
            raise ValueError(f"expected a nonce of {NONCE_BYTES} bytes")


@message
class Evidence:
    """A report of the broker's processor.

    Attributes
    ----------
    vendor : str
        ``"amd"`` or ``"intel"``.
    report : bytes
        AMD's attestation report, or Intel's quote.
    certificates : tuple of bytes
        Certificates of AMD's signing key, its authority and the root (DER); quotes have their own.
    """

    vendor: str
    report: bytes
    certificates: tuple[bytes, ...]


@message
class OfferedGrant:
    """Rights of users in a collection, as the policy of its provider states them.

    ``name`` is ``"user NAME"``, ``"group NAME"``, or empty for everybody. ``limits`` are the
    numbers of the policy, such as ``queries_per_day``. A level of None or a limit that is left out
    is that of the next grant that applies to a user.
    """

    name: str
    level: str | None
    limits: dict[str, int]


@message
class OfferedCollection:
    """A collection that a provider offers, with the settings that all providers must share.

    ``schema`` is the digest of the columns of rows; empty for other objects. ``grants`` are the
    rights of users, those of everybody last. Users see distances at the level ``"distances"``,
    rounded up to multiples of ``distance_step``. These may differ.
    ``n_columns`` is the length of vectors; 0 for other objects. ``trust`` is ``"sealed"`` if only
    sealed queries are answered, ``"enclave"`` if the broker needs evidence. With ``epsilon``, only
    private ones are, of at most this cost and ``delta``. After a change of ``n_forgotten``, the
    number of objects that are left out, the broker removes stored answers. ``area`` has the west,
    south, east and north end of places in degrees, which everybody may know; the west end is larger
    than the east end if the antimeridian is between them.
    """

    name: str
    metric: str
    tie_key: str
    n_objects: int
    filters: dict[str, str]
    schema: str = ""
    distance_step: float = 0.0
    n_columns: int = 0
    trust: str = "trusted"
    grants: tuple[OfferedGrant, ...] = ()
    epsilon: float | None = None
    delta: float = 0.0
    n_forgotten: int = 0
    area: tuple[float, float, float, float] | None = None

    def __post_init__(self) -> None:
        west, south, east, north = self.area or (0.0, 0.0, 0.0, 0.0)
        if not (abs(west) <= 180 and abs(east) <= 180 and -90 <= south <= north <= 90):
            raise ValueError(f"expected an area in degrees, got {self.area}")
        if not 0 <= self.distance_step < math.inf:
            raise ValueError(f"expected a distance step of 0 or more, got {self.distance_step}")
        if self.epsilon is not None and not (0 < self.epsilon < math.inf and 0 <= self.delta < 1):
            raise ValueError(f"expected a cost, got {self.epsilon} and {self.delta}")

    def covers(self, cost: Guarantee) -> bool:
        """Return whether a private query costs no more than is charged."""
        return self.epsilon is None or fits([cost], Privacy(self.epsilon, delta=self.delta).total)

    def grant_for(self, user: str, groups: Collection[str] = ()) -> dict[str, Any]:
        """Return the level of a user, and each limit by its name."""
        names = {"", f"user {user}", *(f"group {name}" for name in groups)}
        found = [grant for grant in self.grants if grant.name in names]
        level = next((one.level for one in found if one.level is not None), "none")
        return {**ChainMap(*(dict(one.limits) for one in found)), "level": level}

    def step_for(self, user: str, groups: Collection[str] = ()) -> float | None:
        """Return the step of distances shown to a user, or None."""
        is_shown = self.grant_for(user, groups)["level"] == "distances"
        return self.distance_step if is_shown else None


@message
class Hello:
    """A provider's name, collections and signature.

    With ``is_check``, the broker confirms or refuses, and then closes the connection; an open link
    of the provider stays.
    """

    provider: str
    collections: tuple[OfferedCollection, ...]
    signature: bytes
    is_check: bool = False

    @classmethod
    def signed(
        cls,
        provider: str,
        collections: tuple[OfferedCollection, ...],
        identity: Identity,
        *,
        challenge: Challenge,
        fingerprint: bytes,
        is_check: bool = False,
    ) -> "Hello":
        """Return a hello with the signature of a provider.

        Parameters
        ----------
        provider, collections, is_check
            Fields of the hello.
        identity : Identity
            Key of the provider.
        challenge : Challenge
            Of the broker.
        fingerprint : bytes
            As for :meth:`content`.
        """
        unsigned = cls(provider, collections, b"", is_check)
        signature = identity.sign(unsigned.content(challenge.nonce, fingerprint))
        return cls(provider, collections, signature, is_check)

    def content(self, nonce: bytes, fingerprint: bytes) -> bytes:
        """Return the bytes that the signature is of.

        Parameters
        ----------
        nonce : bytes
            Of the challenge.
        fingerprint : bytes
            SHA-256 digest of the server's certificate; empty without TLS.
        """
        offered = tuple(encode(collection) for collection in self.collections)
        return digest(
            "check" if self.is_check else "link", nonce, fingerprint, self.provider, offered
        )


@message
class ChangedOffers:
    """A provider's collections after a reload."""

    collections: tuple[OfferedCollection, ...]


@message
class Welcome:
    """Confirmation that the link is open."""


@message
class LinkRequest:
    """A request of a coordinator for one collection.

    Attributes
    ----------
    number : int
        Number of the exchange, the same for all providers.
    collection : str
        Name of the collection.
    query : str
        Name of the query.
    step : int
        Number of requests of this query that the provider has answered.
    remaining_ms : int
        Milliseconds before the deadline.
    body : bytes
        Frame of the request.
    user, purpose : str
        User of the query, and the stated purpose; empty if there is none.
    groups : tuple of str
        Groups of the user.
    noise : str
        Random id of the noise on the counts of a private query; empty before it is drawn.
    trace : str
        Span of the exchange, if the broker traces the query (W3C's header ``traceparent``).
    k : int
        Number of neighbours of the query; 0 for another kind of query.
    """

    number: int
    collection: str
    query: str
    step: int
    remaining_ms: int
    body: bytes
    user: str = ""
    noise: str = ""
    groups: tuple[str, ...] = ()
    purpose: str = ""
    trace: str = ""
    k: int = 0

    @property
    def is_short(self) -> bool:
        """Return whether all strings are as short as a broker's."""
        others = (len(getattr(self, name)) <= most for name, most in _MAX_LENGTHS.items())
        return has_short_names(self.user, self.groups) and all(others)


@message
class LinkRequests:
    """Requests that are sent together.

    Attributes
    ----------
    closed : tuple of str
        Names of queries that have ended.
    frames : tuple of bytes
        Frame of each :class:`LinkRequest`; all providers of a query get the same.
    """

    closed: tuple[str, ...]
    frames: tuple[bytes, ...]


@message
class LinkReplies:
    """Replies that are sent together, to any requests.

    Attributes
    ----------
    numbers : tuple of int
        Number of each request.
    busy_us : tuple of int
        Microseconds of work for each reply.
    bodies : tuple of bytes
        Frame of each reply.
    epochs : tuple of bytes
        Id of the version of the objects that each query sees; empty if unknown.
    """

    numbers: tuple[int, ...]
    busy_us: tuple[int, ...]
    bodies: tuple[bytes, ...]
    epochs: tuple[bytes, ...]

    def __post_init__(self) -> None:
        columns = (self.numbers, self.busy_us, self.bodies, self.epochs)
        if len(set(map(len, columns))) > 1:
            raise ValueError("numbers, times, bodies and epochs differ in number")


def has_short_names(user: str, groups: tuple[str, ...]) -> bool:
    """Return whether names of a user and groups fit into requests."""
    n_characters = sum(len(group) + 1 for group in groups)
    return len(user) <= MAX_USER_LENGTH and n_characters <= MAX_GROUPS_LENGTH


def take_batch(waiting: deque[bytes]) -> tuple[bytes, ...]:
    """Remove and return the next frames that fit into one message."""
    taken, n_bytes = [waiting.popleft()], 0
    while waiting and (n_bytes := n_bytes + len(taken[-1])) + len(waiting[0]) <= _MAX_BATCH_BYTES:
        taken.append(waiting.popleft())
    return tuple(taken)
