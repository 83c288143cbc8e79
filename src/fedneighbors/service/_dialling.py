"""A provider's side of opening a link: connection, certificate, version and evidence."""

import datetime
import secrets
import ssl
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from fedneighbors.errors import FederationError, WireError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refusal
from fedneighbors.service._attestation import AmdRules, EvidenceRefused, IntelRules, bind_report
from fedneighbors.service._messages import (
    MAX_EVIDENCE_BYTES,
    MAX_LINK_FRAME_BYTES,
    NONCE_BYTES,
    VERSION,
    Challenge,
    Evidence,
    EvidenceRequest,
)
from fedneighbors.service._snp import verify_report
from fedneighbors.service._tdx import verify_quote
from fedneighbors.service._tls import peer_fingerprint, pinned_context

HEARTBEAT_S = 1.0
_PATH = "/v1/link"
CLOCK_CODES = (9, 10)
"""OpenSSL's codes of certificates that are not yet valid, or have expired, by the clock."""


class ConnectionRejected(FederationError):  # noqa: N818 - the name states the error
    """The broker refuses the link."""


def open_link(
    broker: str, certificate: str, *, proxy: str | Literal[True] | None = True
) -> connect:
    """Return the connection of a link to be opened.

    Parameters
    ----------
    broker : str
        Address, such as ``"https://broker.example"``.
    certificate : str
        The broker's certificate (PEM); empty for one that this machine trusts, or without TLS.
    proxy : str, True or None
        Address of a proxy; True for the one that the environment names.
    """
    address = urlsplit(broker)
    is_secure = address.scheme == "https"
    return connect(
        f"{'wss' if is_secure else 'ws'}://{address.netloc}{_PATH}",
        ssl=pinned_context(certificate) if is_secure and certificate else None,
        proxy=proxy,
        max_size=MAX_LINK_FRAME_BYTES,
        compression=None,
        ping_interval=HEARTBEAT_S,
        ping_timeout=3 * HEARTBEAT_S,
    )


def read_link_fingerprint(connection: Any) -> bytes:
    """Return the digest of the server's certificate; empty without TLS."""
    tls = connection.transport.get_extra_info("ssl_object")
    return peer_fingerprint(tls) if tls else b""


def explain_certificate(broker: str, error: ssl.SSLCertVerificationError) -> str:
    """Return why the broker's certificate is refused."""
    if error.verify_code in CLOCK_CODES:
        return f"{broker}: {error.verify_message}; set the clock of this machine, or enrol again"
    return (
        f"{broker} has another certificate than at the enrolment: a proxy may inspect TLS, or the "
        "certificate was renewed; enrol again"
    )


def check_version(challenge: Challenge) -> None:
    """Raise ConnectionRejected for a broker of another version."""
    if challenge.version != VERSION:
        older = "the broker" if challenge.version < VERSION else "fedneighbors here"
        raise ConnectionRejected(
            f"the broker speaks version {challenge.version} of the protocol of links, this program "
            f"version {VERSION}; upgrade {older}"
        )


async def verify_broker(connection: Any, rules: AmdRules | IntelRules, folder: Path) -> None:
    """Verify evidence of the broker's machine for a new link.

    Parameters
    ----------
    connection : connection
        Link on which the provider has sent nothing yet.
    rules : AmdRules or IntelRules
        The owner's rules.
    folder : path
        Folder of the owner's files.

    Raises
    ------
    EvidenceRefused
        If the broker has none, or it does not satisfy the rules.
    """
    request = EvidenceRequest(secrets.token_bytes(NONCE_BYTES))
    await connection.send(encode(request))
    connection.protocol.max_message_size = MAX_EVIDENCE_BYTES  # nothing is verified yet
    try:
        frame = await connection.recv()
    except ConnectionClosed as error:
        if error.sent is None or error.sent.code != CloseCode.MESSAGE_TOO_BIG:
            raise
        frame = None
    connection.protocol.max_message_size = MAX_LINK_FRAME_BYTES
    if not isinstance(frame, bytes) or len(frame) > MAX_EVIDENCE_BYTES:
        raise EvidenceRefused("format", f"expected at most {MAX_EVIDENCE_BYTES} bytes")
    try:
        evidence = decode(frame, (Evidence, Refusal))
    except WireError as error:
        raise EvidenceRefused("format", str(error)) from None
    if isinstance(evidence, Refusal):
        raise EvidenceRefused("evidence", f"the broker has none: {evidence.code}")
    report_data = bind_report(request.nonce, read_link_fingerprint(connection))
    check_evidence(evidence, rules, folder, report_data=report_data)


def check_evidence(
    evidence: Evidence,
    rules: AmdRules | IntelRules,
    folder: Path,
    *,
    report_data: bytes,
    at: datetime.datetime | None = None,
) -> None:
    """Check evidence against the owner's rules.

    Parameters
    ----------
    evidence : Evidence
        Evidence of the broker.
    rules, folder
        As for :func:`verify_broker`.
    report_data : bytes
        Expected 64 bytes.
    at : datetime, optional
        Time at which it must be valid; by default now.

    Raises
    ------
    EvidenceRefused
        If a rule is broken; it names the step.
    """
    at = at or datetime.datetime.now(datetime.UTC)
    if evidence.vendor != rules.vendor:
        raise EvidenceRefused("vendor", f"expected {rules.vendor!r}, found {evidence.vendor!r:.40}")
    if isinstance(rules, AmdRules):
        certificates = evidence.certificates
        claims = verify_report(evidence.report, certificates, rules, folder=folder, at=at)
    else:
        claims = verify_quote(evidence.report, rules, folder=folder, at=at)
    rules.check(claims, report_data)
