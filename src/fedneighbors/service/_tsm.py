"""A broker's evidence from Linux (Documentation/ABI/testing/configfs-tsm-report, Linux 6.7)."""

import asyncio
import os
import secrets
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedneighbors.errors import FederationError
from fedneighbors.service._attestation import bind_report
from fedneighbors.service._config import BrokerConfig
from fedneighbors.service._messages import MAX_EVIDENCE_BYTES, Evidence, EvidenceRequest

_KINDS = {"sev_guest": "amd", "tdx_guest": "intel"}
_KEYS = ("63da758d-e664-4564-adc5-f4b93be8accd", "a8074bc2-a25a-483e-aae6-39c045a0b8a1")
_AUTHORITY = "4ab7b379-bbac-4fe4-a02f-05aef327c782"
_ROOT = "c0b406a4-a803-4952-9743-3fb6014cd0ae"
_ENTRY = struct.Struct("<16sII")


class EvidenceMissing(FederationError):  # noqa: N818 - the name states the error
    """The machine makes no evidence for the trust mode ``"enclave"``."""


class Attester:
    """Asks the processor for reports, one at a time.

    Parameters
    ----------
    folder : path
        Folder of the kernel's interface.
    certificates : path, optional
        PEM file with the certificates of AMD's key, authority and root; by default, those that
        the host provides.
    """

    def __init__(self, folder: Path, certificates: Path | None = None) -> None:
        self._folder, self._certificates, self._lock = folder, certificates, asyncio.Lock()

    @classmethod
    def of(cls, config: BrokerConfig) -> "Attester | None":
        """Return the attester of a broker; None if no collection needs it.

        Raises
        ------
        EvidenceMissing
            If this machine makes no evidence.
        """
        if all(one.trust != "enclave" for one in config.collections.values()):
            return None
        section = config.attestation
        file = None if section.certificates is None else config.path(section.certificates)
        attester = cls(Path(section.folder), file)
        attester.read(secrets.token_bytes(64))
        return attester

    async def answer(self, request: EvidenceRequest, fingerprint: bytes) -> Evidence:
        """Return evidence for a provider's nonce and the server's certificate."""
        async with self._lock:
            data = bind_report(request.nonce, fingerprint)
            return await asyncio.to_thread(self.read, data)

    def read(self, report_data: bytes) -> Evidence:
        """Return evidence with 64 bytes of report data.

        Raises
        ------
        EvidenceMissing
            If the kernel makes none, or its certificates are missing.
        """
        if not self._folder.is_dir():
            raise EvidenceMissing(
                f'there is no folder {self._folder}: a broker with trust = "enclave" runs in a '
                "confidential virtual machine (AMD SEV-SNP or Intel TDX) whose Linux is 6.7 or "
                "later, has configfs mounted, and the module sev-guest or tdx-guest loaded"
            )
        entry = self._folder / f"fedneighbors-{secrets.token_hex(16)}"
        try:
            os.mkdir(entry)
            try:
                kind, report, table = _read_entry(entry, report_data)
            finally:
                os.rmdir(entry)
        except OSError as error:
            raise EvidenceMissing(f"the kernel makes no report: {error}") from error
        chain = tuple(self._find_chain(table)) if kind == "amd" else ()
        if len(report) + sum(map(len, chain)) > MAX_EVIDENCE_BYTES - 1024:  # the frame adds little
            raise EvidenceMissing(f"a report of {len(report)} bytes is too long")
        return Evidence(kind, report, chain)

    def _find_chain(self, table: bytes) -> Iterator[bytes]:
        """Yield the certificates of the key, its authority and the root (DER)."""
        if self._certificates is not None:
            try:
                found = x509.load_pem_x509_certificates(self._certificates.read_bytes())
            except (OSError, ValueError) as error:
                raise EvidenceMissing(f"{self._certificates}: {error}") from None
            yield from (one.public_bytes(Encoding.DER) for one in found)
            return
        entries = _read_table(table)
        key = next((name for name in _KEYS if name in entries), _KEYS[0])
        for name in (key, _AUTHORITY, _ROOT):
            if name not in entries:
                raise EvidenceMissing(
                    "the host provides no certificates of AMD's key; download them, and name "
                    "the file in attestation.certificates"
                )
            yield entries[name]


def _read_entry(entry: Path, report_data: bytes) -> tuple[str, bytes, bytes]:
    """Return vendor, report and table of certificates of an entry."""
    descriptor = os.open(entry / "inblob", os.O_WRONLY)
    try:
        os.write(descriptor, report_data)  # at once, as the kernel demands
    finally:
        os.close(descriptor)
    report = (entry / "outblob").read_bytes()
    try:
        table = (entry / "auxblob").read_bytes()
    except FileNotFoundError:
        table = b""
    if (entry / "generation").read_text("ascii").strip() != "1":
        raise EvidenceMissing(f"another process has written to {entry}")
    provider = (entry / "provider").read_text("ascii").strip()
    if provider not in _KINDS:
        raise EvidenceMissing(f"expected reports of {', '.join(_KINDS)}, found {provider!r}")
    return _KINDS[provider], report, table


def _read_table(raw: bytes) -> dict[str, bytes]:
    """Return the entries of a host's table of certificates, by name."""
    found = {}
    for start in range(0, len(raw) - _ENTRY.size + 1, _ENTRY.size):
        name, offset, size = _ENTRY.unpack_from(raw, start)
        if not any(name):
            break
        for one in (uuid.UUID(bytes=name), uuid.UUID(bytes_le=name)):  # hosts write either
            found[str(one)] = raw[offset : offset + size]
    return found
