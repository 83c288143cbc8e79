"""Checks of the way to a broker, hop by hop, and of a provider's sources."""

import asyncio
import email.utils
import hashlib
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
from websockets.exceptions import WebSocketException
from websockets.proxy import get_proxy
from websockets.uri import parse_uri

from fedneighbors.errors import FedneighborsError, WireError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refusal, Refused
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service._config import OfferSection, ProviderConfig
from fedneighbors.service._dialling import (
    ConnectionRejected,
    check_version,
    open_link,
    read_link_fingerprint,
    verify_broker,
)
from fedneighbors.service._messages import NOT_ENROLLED, OTHER_VERSION, Challenge, Hello, Welcome
from fedneighbors.service._offers import OfferedObjects, describe_offer
from fedneighbors.service._tls import pinned_context, read_fingerprint
from fedneighbors.service._voter import Voter

MAX_SKEW_S = 60.0
"""Largest difference between the clocks; codes and tokens expire by the broker's."""

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Hop:
    """Result of the check of one hop.

    Parameters
    ----------
    name : str
        Name of the hop.
    is_ok : bool
        The check did not fail.
    text : str
        What was found; after a failure, also what to do.
    """

    name: str
    is_ok: bool
    text: str

    def __str__(self) -> str:
        return f"{self.name:<12} {'ok' if self.is_ok else 'failed':<7} {self.text}"


class HopFailed(Exception):  # noqa: N818 - the name states the error
    """A hop failed, with its name and what to do."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.hop = Hop(name, False, text)


@dataclass(frozen=True)
class Visitor:
    """The one who asks: a provider with its configuration, or a user with a token.

    Parameters
    ----------
    url : str
        Address of the broker.
    certificate : path or None
        The broker's certificate, if it is the only one to be trusted.
    token : str
        Token of a user; empty for none.
    config : ProviderConfig or None
        Configuration of a provider.
    """

    url: str
    certificate: Path | None = None
    token: str = ""
    config: ProviderConfig | None = None

    @classmethod
    def of(cls, config: ProviderConfig) -> "Visitor":
        """Return the provider of a configuration."""
        section = config.provider
        return cls(section.broker.rstrip("/"), config.path(section.certificate), config=config)

    @property
    def place(self) -> tuple[str, int]:
        """Return host and port of the broker."""
        address = urlsplit(self.url)
        return address.hostname or "", address.port or (443 if self.is_secure else 80)

    @property
    def is_secure(self) -> bool:
        """Return whether the broker is asked over TLS."""
        return urlsplit(self.url).scheme == "https"

    @property
    def proxy(self) -> str | None:
        """Return the address of the proxy that the environment names, or None."""
        scheme = "wss" if self.is_secure else "ws"
        return get_proxy(parse_uri(f"{scheme}://{urlsplit(self.url).netloc}"))

    def read_pin(self) -> str:
        """Return the certificate (PEM); empty for those that this machine trusts."""
        return "" if self.certificate is None else self.certificate.read_text("ascii")


def examine(visitor: Visitor) -> Iterator[Hop]:
    """Check the hops until one fails, and a provider's sources."""
    try:
        yield from _examine_network(visitor)
        hops = asyncio.run(_examine_link(visitor))
        yield from hops
        if visitor.config is None and hops[-1].is_ok:
            yield _check_user(visitor)
    except HopFailed as failure:
        yield failure.hop
    if visitor.config is not None:
        yield from _examine_sources(visitor.config)


def _examine_network(visitor: Visitor) -> Iterator[Hop]:
    proxy = visitor.proxy
    host, port = (
        visitor.place
        if proxy is None
        else (urlsplit(proxy).hostname or "", urlsplit(proxy).port or 80)
    )
    whose = "the broker" if proxy is None else "the proxy"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise HopFailed(
            "DNS", f"{host!r} has no address ({error}); correct the name, or ask who runs {whose}"
        ) from None
    yield Hop("DNS", True, f"{host} is {found[0][4][0]}")
    try:
        connection = socket.create_connection((host, port), _TIMEOUT_S)
    except OSError as error:
        raise HopFailed(
            "TCP",
            f"{whose} does not accept connections at {host}:{port} ({error}); start it, correct "
            "the port, or let the firewall pass",
        ) from None
    with closing(connection):
        yield Hop("TCP", True, f"{whose} accepts connections at {host}:{port}")
        if proxy is None:
            yield Hop("proxy", True, "none is set")
        else:
            _pass_proxy(connection, proxy, visitor.place)
            yield Hop("proxy", True, f"{_hide_password(proxy)} passes connections on")
        yield from _check_tls(connection, visitor)
    yield _check_clock(visitor)


def _hide_password(proxy: str) -> str:
    return f"{urlsplit(proxy).scheme}://{urlsplit(proxy).netloc.rpartition('@')[2]}"


def _pass_proxy(connection: socket.socket, proxy: str, place: tuple[str, int]) -> None:
    """Let a proxy connect to the broker."""
    address, target = urlsplit(proxy), f"{place[0]}:{place[1]}"
    if address.scheme != "http":
        raise HopFailed("proxy", f"expected a proxy such as http://host:3128, got {address.scheme}")
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if address.username is not None:
        secret = f"{unquote(address.username)}:{unquote(address.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {b64encode(secret.encode()).decode()}")
    try:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        reply = b""
        while b"\r\n\r\n" not in reply and (data := connection.recv(4096)):
            reply += data
    except OSError as error:
        raise HopFailed("proxy", f"{_hide_password(proxy)} does not answer ({error})") from None
    status = reply.partition(b"\r\n")[0].decode("latin-1")
    if " 407" in status:
        raise HopFailed(
            "proxy",
            f"{_hide_password(proxy)} asks for a name and password; set "
            "HTTPS_PROXY=http://NAME:PASSWORD@HOST:PORT",
        )
    if " 200" not in status:
        raise HopFailed(
            "proxy",
            f"{_hide_password(proxy)} refuses {target} ({status or 'no answer'}); ask its operator "
            f"to allow CONNECT, or set NO_PROXY={place[0]}",
        )


def _check_tls(connection: socket.socket, visitor: Visitor) -> Iterator[Hop]:
    if not visitor.is_secure:
        yield Hop("TLS", True, "none: the address begins with http")
        return
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    try:
        tls = unchecked.wrap_socket(connection, server_hostname=visitor.place[0])
    except OSError as error:
        raise HopFailed(
            "TLS",
            f"the server does not answer with TLS ({error}); correct the port, or use http:// for "
            "a broker with tls = false",
        ) from None
    with closing(tls):
        yield Hop("TLS", True, str(tls.version()))
        seen = tls.getpeercert(binary_form=True) or b""
    fingerprint = hashlib.sha256(seen).hexdigest()
    if visitor.certificate is None:
        try:
            httpx.get(f"{visitor.url}/healthz", proxy=visitor.proxy, trust_env=False)
        except httpx.HTTPError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise HopFailed(
                    "fingerprint",
                    f"this machine does not trust the certificate {fingerprint}; pass "
                    "--certificate with the broker's file, if this is its fingerprint",
                ) from None
        yield Hop("fingerprint", True, "this machine trusts the certificate")
        return
    try:
        expected = read_fingerprint(visitor.certificate).hex()
    except (OSError, ValueError):
        raise HopFailed(
            "fingerprint",
            f"{visitor.certificate} has no certificate; enrol: fedneighbors provider enrol CODE",
        ) from None
    if fingerprint != expected:
        raise HopFailed(
            "fingerprint",
            f"expected the certificate {expected}, found {fingerprint}: a proxy inspects TLS, and "
            "its operator must exempt the broker; or the certificate was renewed: enrol again",
        )
    yield Hop("fingerprint", True, f"that of the certificate in {visitor.certificate}")


def _get(visitor: Visitor, path: str) -> httpx.Response:
    """Return the broker's answer to a request without a body."""
    context: Any = True
    if visitor.is_secure and (pin := visitor.read_pin()):
        context = pinned_context(pin)
    headers = {"Authorization": f"Bearer {visitor.token}"} if visitor.token else {}
    return httpx.get(
        f"{visitor.url}{path}",
        headers=headers,
        verify=context,
        proxy=visitor.proxy,
        trust_env=False,
        timeout=_TIMEOUT_S,
    )


def _check_clock(visitor: Visitor) -> Hop:
    try:
        response = _get(visitor, "/healthz")
        date = email.utils.parsedate_to_datetime(response.headers["date"]).timestamp()
    except httpx.HTTPError as error:
        raise HopFailed("clock", f"the broker does not answer HTTP ({error}); restart it") from None
    except (KeyError, ValueError):
        raise HopFailed("clock", "the answer has no date; this server is no broker") from None
    skew_s = time.time() - date
    if abs(skew_s) > MAX_SKEW_S:
        raise HopFailed(
            "clock",
            f"this machine is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the "
            "broker; set the clock that is wrong, for instance by NTP",
        )
    return Hop("clock", True, f"at most {abs(skew_s) + 1:.0f} s apart")


async def _examine_link(visitor: Visitor) -> list[Hop]:
    """Open a link; let a provider ask whether it would be accepted."""
    pin = visitor.read_pin() if visitor.is_secure else ""
    hops = []
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            open_link(visitor.url, pin, proxy=visitor.proxy) as connection,
        ):
            hops.append(Hop("link", True, "WebSockets pass"))
            challenge = decode(_binary(await connection.recv()), (Challenge,))
            check_version(challenge)
            hops.append(Hop("version", True, f"{challenge.version} of the protocol of links"))
            if visitor.config is not None:
                hops += await _examine_evidence(connection, visitor.config)
                fingerprint = read_link_fingerprint(connection)
                hello = _make_hello(visitor.config, challenge, fingerprint)
                await connection.send(encode(hello))
                reply = decode(_binary(await connection.recv()), (Welcome, Refusal))
                hops += _read_reply(reply, visitor.config)
    except HopFailed as failure:
        hops.append(failure.hop)
    except ConnectionRejected as error:
        hops.append(Hop("version", False, str(error)))
    except WireError:
        text = "the broker's first message is of another version; upgrade the older program"
        hops.append(Hop("version", False, text))
    except (WebSocketException, OSError) as error:
        text = f"no WebSocket opens ({error}); a proxy before the broker must pass the headers "
        hops.append(Hop("link", False, text + "Upgrade and Connection"))
    return hops


async def _examine_evidence(connection: Any, config: ProviderConfig) -> list[Hop]:
    """Verify the broker's evidence, if a collection demands it."""
    rules = config.attestation
    if rules is None or all(one.trust != "enclave" for one in config.collections.values()):
        return []
    try:
        await verify_broker(connection, rules, config.folder)
    except FedneighborsError as error:
        raise HopFailed("evidence", str(error)) from None
    return [Hop("evidence", True, f"of {rules.vendor}, for an accepted virtual machine")]


def _binary(frame: str | bytes) -> bytes:
    return frame if isinstance(frame, bytes) else b""


def _make_hello(config: ProviderConfig, challenge: Challenge, fingerprint: bytes) -> Hello:
    section = config.provider
    key = config.path(section.key)
    try:
        identity = Identity.read(key)
    except (OSError, ValueError, FedneighborsError) as error:
        raise HopFailed(
            "identity", f"no key in {key} ({error}); enrol: fedneighbors provider enrol CODE"
        ) from None
    offers = tuple(describe_offer(name, one, digest) for name, one, digest in _read_digests(config))
    return Hello.signed(
        section.name, offers, identity, challenge=challenge, fingerprint=fingerprint, is_check=True
    )


def _read_digests(config: ProviderConfig) -> Iterator[tuple[str, OfferSection, str]]:
    """Yield the collections with the digests of their schemas."""
    for name, section in config.collections.items():
        try:
            schema = section.read_schema(config.folder)
        except FedneighborsError as error:
            raise HopFailed("source", f"{name}: {error}; see [collections.{name}]") from None
        yield name, section, "" if schema is None else schema.digest


def _read_reply(reply: Welcome | Refusal, config: ProviderConfig) -> list[Hop]:
    """Return the hops of a broker's reply to a hello."""
    name = config.provider.name
    if isinstance(reply, Refusal) and reply.code == NOT_ENROLLED:
        raise HopFailed(
            "identity", f"{reply.code}; ask the operator for a code for {name!r} and enrol again"
        )
    if isinstance(reply, Refusal) and reply.code == OTHER_VERSION:
        raise HopFailed("version", f"{reply.code}; upgrade the older program")
    known = Hop("identity", True, f"the broker knows the key of {name!r}")
    if isinstance(reply, Welcome):
        return [known, Hop("policy", True, "metric, columns, tie_key and filters as at the broker")]
    detail = f": {reply.detail}" if reply.detail else ""
    text = f"{reply.code}{detail}; agree with the operator of the broker"
    return [known, Hop("policy", False, text)]


def _check_user(visitor: Visitor) -> Hop:
    """Check the token of a user."""
    if not visitor.token:
        return Hop("identity", True, "not checked: no token in FEDNEIGHBORS_TOKEN")
    response = _get(visitor, "/v1/collections")
    if response.status_code == 401:
        raise HopFailed(
            "identity", "the token is wrong or has expired; ask the operator for a new one"
        )
    if not response.is_success:
        raise HopFailed("identity", f"the broker answers {response.status_code} to the token")
    names = ", ".join(one["name"] for one in response.json()["collections"]) or "none"
    return Hop("identity", True, f"the token is valid, for the collections: {names}")


def _examine_sources(config: ProviderConfig) -> Iterator[Hop]:
    """Read each source and build its index."""
    for name, section in config.collections.items():
        try:
            read = OfferedObjects.read(
                config.provider.name, name, section, config.folder, secret=b""
            )
        except (FedneighborsError, Refused, OSError, ValueError) as error:
            text = error.code if isinstance(error, Refused) else str(error)
            yield Hop("source", False, f"{name}: {text}; see [collections.{name}]")
        else:
            is_voter = isinstance(read.party, Voter)
            text = "a model" if is_voter else f"{read.offer.n_objects} objects"
            yield Hop("source", True, f"{name}: {text}")
