"""Evidence that a broker runs in a confidential virtual machine, and an owner's rules for it.

A provider sends random bytes, and the broker's processor signs a report that contains
:func:`bind_report` of them and of the broker's certificate.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
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
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
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

    The first certificate of a chain is one of the files ``roots``; by default, of the vendor.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    measurements: Sequence[BaseModel]
    roots: tuple[str, ...] = ()

    def read_roots(self, folder: Path, pinned: frozenset[str]) -> frozenset[str]:
        """Return the hexadecimal SHA-256 digests of accepted roots."""
        return frozenset(map(hash_certificate, read_pem(folder, self.roots))) or pinned

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
    min_tcb: dict[Component, Annotated[int, Field(ge=0, le=255)]] = Field(min_length=1)
    vmpl: int = Field(default=0, ge=0, le=3)
    crls: tuple[str, ...]


class IntelRules(Rules):
    """Rules for quotes of Intel TDX.

    ``collateral`` is the JSON file with revocation lists, platform versions and identities that
    Intel signs; ``statuses`` are the accepted states of the platform.
    """

    vendor: Literal["intel"]
    measurements: tuple[TdxMeasurement, ...] = Field(min_length=1)
    collateral: str
    statuses: tuple[Status, ...] = ("UpToDate",)


def hash_certificate(certificate: x509.Certificate) -> str:
    """Return the hexadecimal SHA-256 digest of a certificate."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def read_file(folder: Path, name: str) -> bytes:
    """Return the content of a file of the owner; raise EvidenceRefused without it."""
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
