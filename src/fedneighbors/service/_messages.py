"""Messages of a link between a provider and the broker.

A link is a WebSocket that the provider opens. The broker sends a :class:`Challenge`, the provider
a signed :class:`Hello`, and the broker a :class:`Welcome` or a
:class:`~fedneighbors.federation._roles.Refusal`. Then the broker sends any number of
:class:`LinkRequest`, and the provider a :class:`LinkReply` to each, and :class:`ChangedOffers`
after a reload. A refusal ends the link.

The signature contains the digest of the server certificate that the provider received (channel
binding, RFC 5929), so that a link over somebody else's server is rejected.
"""

import secrets

from fedneighbors.federation._messages import encode, message
from fedneighbors.secure_sum._keys import Identity, digest

VERSION = 1
"""Version of this protocol."""

MAX_LINK_FRAME_BYTES = 16 << 20
"""Maximum size of a message on a link."""

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
class OfferedCollection:
    """A collection that a provider offers, with the settings that all providers must share."""

    name: str
    metric: str
    tie_key: str
    n_objects: int
    filters: dict[str, str]


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
        Number of the request on this link.
    collection : str
        Name of the collection.
    query : str
        Name of the query.
    step : int
        Number of requests of this query that the provider has answered.
    remaining_ms : int
        Milliseconds before the deadline.
    closed : tuple of str
        Names of queries that have ended.
    body : bytes
        Frame of the request.
    """

    number: int
    collection: str
    query: str
    step: int
    remaining_ms: int
    closed: tuple[str, ...]
    body: bytes


@message
class LinkReply:
    """Frame of the reply to a request, and the microseconds of work for it.

    ``epoch`` is the id of the version of the objects that the query sees; empty if unknown.
    """

    number: int
    busy_us: int
    body: bytes
    epoch: bytes = b""
