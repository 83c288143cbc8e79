"""Evidence that a broker runs in a confidential virtual machine, and an owner's rules for it.

A provider sends random bytes, and the broker's processor signs a report that contains
:func:`bind_report` of them and of the broker's certificate.
"""

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import BaseModel, ConfigDict, Field

from fedneighbors.errors import FederationError

UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""Errors of the package cryptography for certificates that it cannot read."""

_DOMAIN = b"fedneighbors enclave evidence 1\0"
Digest32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Digest48 = Annotated[str, Field(pattern="^[0-9a-f]{96}$")]
Component = Literal["fmc", "boot_loader", "tee", "snp", "microcode"]
Status = Literal[
    "UpToDate",
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
]


class EvidenceRefused(FederationError):  # noqa: N818 - the name states the error
    """The broker's evidence does not satisfy the owner.

    Parameters
    ----------
    step : str
        Name of the failing step.
    reason : str
        The expectation, the finding and the remedy.
    """

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"the broker's evidence is refused ({step}): {reason}")
        self.step = step


def bind_report(nonce: bytes, fingerprint: bytes) -> bytes:
    """Return the 64 bytes of report data for a link.

    It is the SHA-512 digest of ``"fedneighbors enclave evidence 1"``, a zero byte, the nonce and
    the fingerprint. All have fixed lengths.

    Parameters
    ----------
    nonce : bytes
        32 random bytes of the provider.
    fingerprint : bytes
        SHA-256 digest of the server's certificate.
    """
    if (len(nonce), len(fingerprint)) != (32, 32):
        raise ValueError("expected a nonce and a fingerprint of 32 bytes each")
    return hashlib.sha512(_DOMAIN + nonce + fingerprint).digest()


@dataclass(frozen=True)
class Claims:
    """Authentic content of a report.

    Parameters
    ----------
    report_data : bytes
        64 bytes that the broker chose.
    registers : mapping of str to bytes
        Measurements of the virtual machine.
    """

    report_data: bytes
    registers: Mapping[str, bytes]


class Rules(BaseModel):
    """Rules for evidence of any vendor.

    The root of a chain is in one of the files ``roots``; by default, it is the vendor's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    measurements: Sequence[BaseModel]
    roots: tuple[str, ...] = ()

    def read_roots(self, folder: Path, pinned: frozenset[str]) -> frozenset[str]:
        """Return the hexadecimal SHA-256 digests of accepted roots."""
        return frozenset(map(hash_certificate, read_pem(folder, self.roots))) or pinned

    @property
    def files(self) -> tuple[str, ...]:
        """Return the names of the other files."""
        return ()

    def check_files(self, folder: Path) -> None:
        """Raise EvidenceRefused unless all files can be read."""
        read_pem(folder, self.roots)
        for name in self.files:
            read_file(folder, name)

    def check(self, claims: Claims, report_data: bytes) -> None:
        """Compare a report with a link and the owner's list.

        Raises
        ------
        EvidenceRefused
            If the report is of another link, or of a virtual machine that is not in the list.
        """
        if claims.report_data != report_data:
            raise EvidenceRefused(
                "report data",
                "the report is not for this nonce and this server's certificate: it is an old one, "
                "or TLS does not end in the confidential virtual machine",
            )
        found = {name: value.hex() for name, value in claims.registers.items()}
        accepted = [one.model_dump(exclude_none=True) for one in self.measurements]
        if not any(one.items() <= found.items() for one in accepted):
            names = sorted({name for one in accepted for name in one})
            shown = ", ".join(f"{name} = {found[name]}" for name in names)
            raise EvidenceRefused(
                "measurement",
                f"{shown} is not in attestation.measurements; add it if the broker's image is one "
                "that you have examined",
            )


class SnpMeasurement(BaseModel):
    """An accepted virtual machine of AMD SEV-SNP."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measurement: Digest48
    host_data: Digest32 | None = None


class TdxMeasurement(BaseModel):
    """An accepted virtual machine of Intel TDX; ``mrtd`` alone would leave its kernel open."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mrtd: Digest48
    rtmr0: Digest48 | None = None
    rtmr1: Digest48
    rtmr2: Digest48
    rtmr3: Digest48 | None = None
    mrconfigid: Digest48 | None = None


class AmdRules(Rules):
    """Rules for reports of AMD SEV-SNP.

    Each component of the reported version of the platform must be at least ``min_tcb``. The files
    ``crls`` are revocation lists; with an empty list, revocation is not checked.
    """

    vendor: Literal["amd"]
    measurements: tuple[SnpMeasurement, ...] = Field(min_length=1)
    min_tcb: dict[Component, Annotated[int, Field(strict=True, ge=0, le=255)]] = Field(min_length=1)
    vmpl: int = Field(default=0, strict=True, ge=0, le=3)
    crls: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Return the names of the revocation lists."""
        return self.crls


class IntelRules(Rules):
    """Rules for quotes of Intel TDX.

    ``collateral`` is the JSON file with revocation lists, platform versions and identities that
    Intel signs; ``statuses`` are the accepted states of the platform.
    """

    vendor: Literal["intel"]
    measurements: tuple[TdxMeasurement, ...] = Field(min_length=1)
    collateral: str
    statuses: tuple[Status, ...] = ("UpToDate",)

    @property
    def files(self) -> tuple[str, ...]:
        """Return the name of the collateral."""
        return (self.collateral,)


def hash_certificate(certificate: x509.Certificate) -> str:
    """Return the hexadecimal SHA-256 digest of a certificate."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def read_file(folder: Path, name: str) -> bytes:
    """Return the content of a file; raise EvidenceRefused without it."""
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise EvidenceRefused("file", f"{folder / name} cannot be read: {error}") from None


def read_pem(folder: Path, names: tuple[str, ...]) -> list[x509.Certificate]:
    """Return the certificates of PEM files of the owner."""
    found = []
    for name in names:
        try:
            found += x509.load_pem_x509_certificates(read_file(folder, name))
        except ValueError as error:
            raise EvidenceRefused("file", f"{folder / name} has no certificate: {error}") from None
    return found


def verify_chain(
    certificates: Sequence[x509.Certificate],
    roots: frozenset[str],
    *,
    crls: Sequence[bytes],
    at: datetime.datetime,
) -> None:
    """Verify the certificates of a signing key, its authority and the root.

    Parameters
    ----------
    certificates : sequence of Certificate
        The three certificates.
    roots : frozenset of str
        Hexadecimal SHA-256 digests of accepted roots.
    crls : sequence of bytes
        Revocation lists, one of the root; if empty, revocation is not checked.
    at : datetime
        Time at which certificates and lists must be valid.

    Raises
    ------
    EvidenceRefused
        If the chain does not end in a root, is not valid, or is revoked.
    ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound
        And the others of ``UNREADABLE``, if a certificate or list cannot be read.
    """
    if len(certificates) != 3:
        raise EvidenceRefused(
            "chain", f"expected 3 certificates (key, authority, root), found {len(certificates)}"
        )
    leaf, middle, root = certificates
    if hash_certificate(root) not in roots:
        raise EvidenceRefused(
            "root", f"the root {hash_certificate(root)} is none of the vendor, nor of your roots"
        )
    for issued, issuer in ((root, root), (middle, root), (leaf, middle)):
        name = issued.subject.rfc4514_string()
        try:
            issued.verify_directly_issued_by(issuer)
        except (InvalidSignature, ValueError, TypeError) as error:
            reason = str(error) or "its signature is wrong"
            raise EvidenceRefused(
                "chain", f"{name} is not issued by the next one: {reason}"
            ) from None
        if not issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            raise EvidenceRefused("chain", f"the issuer of {name} is no authority")
    _check_times(certificates, at)
    if crls:
        _check_revocation(certificates, crls, at)


def _check_times(chain: Sequence[x509.Certificate], at: datetime.datetime) -> None:
    for one in chain:
        if not one.not_valid_before_utc <= at <= one.not_valid_after_utc:
            raise EvidenceRefused(
                "validity",
                f"{one.subject.rfc4514_string()} is valid from {one.not_valid_before_utc} to "
                f"{one.not_valid_after_utc}, not at {at}",
            )


def _check_revocation(
    chain: Sequence[x509.Certificate], crls: Sequence[bytes], at: datetime.datetime
) -> None:
    """Check the chain against lists; one must be of the root."""
    leaf, middle, root = chain
    issuers = set()
    for raw in crls:
        is_pem = raw.startswith(b"-----BEGIN")
        found = x509.load_pem_x509_crl(raw) if is_pem else x509.load_der_x509_crl(raw)
        name = found.issuer.rfc4514_string()
        for issuer, issued in ((root, middle), (middle, leaf)):
            if found.issuer != issuer.subject or not found.is_signature_valid(issuer.public_key()):  # type: ignore[arg-type]
                continue
            until = found.next_update_utc
            if until is None or not found.last_update_utc <= at <= until:
                raise EvidenceRefused(
                    "revocation list",
                    f"that of {name} is valid from {found.last_update_utc} to {until}, not at "
                    f"{at}; download it again",
                )
            if found.get_revoked_certificate_by_serial_number(issued.serial_number) is not None:
                raise EvidenceRefused("revocation", f"{issued.subject.rfc4514_string()} is revoked")
            issuers.add(issuer)
            break
        else:
            raise EvidenceRefused("revocation list", f"{name} did not sign the list of that name")
    if root not in issuers:
        raise EvidenceRefused("revocation list", "there is none of the root; add it to crls")
