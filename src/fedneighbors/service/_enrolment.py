"""Enrolment of a provider: its key, and the broker's certificate."""

import hashlib
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from fedneighbors.errors import DataError, FederationError
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service._config import ProviderConfig
from fedneighbors.service._state import EnrolmentCode
from fedneighbors.service._tls import pinned_context

_TIMEOUT_S = 10.0


def enrol(config: ProviderConfig, text: str) -> None:
    """Send a provider's key to its broker, with a one-time code.

    The key and the broker's certificate are kept. A key from an earlier enrolment is used again.

    Raises
    ------
    DataError
        If the text is not a code.
    FederationError
        If the broker cannot be reached, has another certificate, or refuses the code.
    """
    section, code = config.provider, EnrolmentCode.parse(text)
    certificate = _fetch_certificate(section.broker, code.fingerprint)
    key_file, pin = config.path(section.key), config.path(section.certificate)
    identity = Identity.read(key_file) if key_file.exists() else Identity.new()
    body = {
        "provider": section.name,
        "secret": code.secret.hex(),
        "key": identity.public.hex(),
        "signature": identity.sign(code.content(section.name, identity.public)).hex(),
    }
    try:
        response = httpx.post(
            f"{section.broker.rstrip('/')}/v1/enrolments",
            json=body,
            verify=pinned_context(certificate) if certificate else True,
            timeout=_TIMEOUT_S,
        )
        content = response.json()
    except (httpx.HTTPError, ValueError) as error:
        raise FederationError(f"cannot enrol at {section.broker}: {error}") from None
    if response.status_code != 201:
        detail = content.get("detail") if isinstance(content, dict) else content
        raise FederationError(f"{section.broker} refuses the enrolment: {detail}")
    for path in (key_file, pin):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not key_file.exists():
        identity.write(key_file)
    pin.write_text(certificate, encoding="ascii")


def read_pin(path: Path) -> str:
    """Return the broker's certificate from the enrolment; empty without TLS.

    Raises
    ------
    DataError
        If the provider is not enrolled.
    """
    _check_enrolled(path)
    return path.read_text("ascii")


def read_key(path: Path) -> Identity:
    """Return the provider's key from the enrolment.

    Raises
    ------
    DataError
        If the provider is not enrolled.
    ValueError
        If the file is no private key, or other users have access to it.
    """
    _check_enrolled(path)
    return Identity.read(path)


def _check_enrolled(path: Path) -> None:
    if not path.exists():
        raise DataError(f"{path} does not exist; enrol first: fedneighbors provider enrol CODE")


def _fetch_certificate(broker: str, fingerprint: bytes) -> str:
    """Return the server's certificate, if it has the fingerprint of the code."""
    address = urlsplit(broker)
    if address.scheme == "http":
        if fingerprint:
            raise FederationError(f"the code is for a broker with TLS: use https, not {broker}")
        return ""
    try:
        with (  # httpx passes a proxy; nothing secret is sent
            httpx.Client(verify=False, timeout=_TIMEOUT_S) as client,
            client.stream("GET", f"{broker.rstrip('/')}/healthz") as response,
        ):
            tls = response.extensions["network_stream"].get_extra_info("ssl_object")
            content = tls.getpeercert(True)
    except httpx.HTTPError as error:
        raise FederationError(f"cannot reach {broker}: {error}") from None
    certificate, seen = ssl.DER_cert_to_PEM_cert(content), hashlib.sha256(content).digest()
    if seen != fingerprint:
        raise FederationError(
            f"{broker} has another certificate than the broker that made the code: expected the "
            f"fingerprint {fingerprint.hex()}, found {seen.hex()}; a proxy may inspect TLS"
        )
    return certificate
