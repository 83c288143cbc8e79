"""Attestation reports of AMD SEV-SNP ("SEV Secure Nested Paging Firmware ABI", chapter 7.3)."""

import datetime
import struct
import warnings
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import NameOID

from fedneighbors.service._attestation import (
    UNREADABLE,
    AmdRules,
    Claims,
    EvidenceRefused,
    read_file,
    verify_chain,
)

PINNED = frozenset(
    {
        "69d063b45344d26a2e94e1f4210de49ef555308287d4c174445c95639a540bcd",  # ARK-Milan
        "4c6598d19c18719c5dfd4a7d335f674e5bfe1d8f800cea2cf270c10d103db2f1",  # ARK-Genoa
        "1f084161a44bb6d93778a904877d4819cafa5d05ef4193b2ded9dd9c73dd3f6a",  # ARK-Turin
    }
)
"""SHA-256 digests of AMD's root certificates."""

_N_BYTES, _N_SIGNED, _SIGNATURE_BYTES = 1184, 672, 144
_VERSIONS = range(2, 6)
_ECDSA_P384 = 1
_DEBUG, _MIGRATION = 1 << 19, 1 << 18  # bits of the guest's policy
_TURIN = 0x1A  # family of processors whose version has another layout
_LAYOUTS = {
    False: {"boot_loader": 0, "tee": 1, "snp": 6, "microcode": 7},
    True: {"fmc": 0, "boot_loader": 1, "tee": 2, "snp": 3, "microcode": 7},
}
_OID = "1.3.6.1.4.1.3704.1"
_VERSION_OIDS = {"boot_loader": 1, "tee": 2, "snp": 3, "microcode": 8, "fmc": 9}
_KEYS = {0: "SEV-VCEK", 1: "SEV-VLEK"}  # a chip has the first, a cloud the second


class SnpReport:
    """An attestation report; fields are as in the specification.

    Raises
    ------
    EvidenceRefused
        If the bytes are no report of a known version.
    """

    def __init__(self, raw: bytes) -> None:
        if len(raw) != _N_BYTES:
            raise EvidenceRefused("format", f"expected {_N_BYTES} bytes, found {len(raw)}")
        (version,) = struct.unpack_from("<I", raw)
        if version not in _VERSIONS:
            raise EvidenceRefused("format", f"expected a report of version 2 to 5, found {version}")
        (self.policy,) = struct.unpack_from("<Q", raw, 0x08)
        self.vmpl, algorithm = struct.unpack_from("<II", raw, 0x30)
        if algorithm != _ECDSA_P384:
            raise EvidenceRefused("format", f"expected ECDSA P-384 (1), found {algorithm}")
        if any(raw[_N_SIGNED + _SIGNATURE_BYTES :]):
            raise EvidenceRefused("format", "the bytes after the signature are not zero")
        self.signed = raw[:_N_SIGNED]
        r, s = (
            int.from_bytes(raw[start : start + 72], "little")
            for start in (_N_SIGNED, _N_SIGNED + 72)
        )
        self.signature = encode_dss_signature(r, s)
        (flags,) = struct.unpack_from("<I", raw, 0x48)
        self.signing_key = flags >> 2 & 7
        self.chip_id, self.report_data = raw[0x1A0:0x1E0], raw[0x50:0x90]
        self.registers = {"measurement": raw[0x90:0xC0], "host_data": raw[0xC0:0xE0]}
        is_turin = version >= 3 and raw[0x188] == _TURIN
        self.tcb = {name: raw[0x180 + place] for name, place in _LAYOUTS[is_turin].items()}


def verify_report(
    raw: bytes,
    certificates: Sequence[bytes],
    rules: AmdRules,
    *,
    folder: Path,
    at: datetime.datetime,
) -> Claims:
    """Verify a report, and return its content.

    Parameters
    ----------
    raw : bytes
        The report.
    certificates : sequence of bytes
        Certificates of the signing key, of the intermediate authority, and of the root (DER).
    rules : AmdRules
        The owner's rules.
    folder : path
        Folder of the owner's files.
    at : datetime
        Time at which certificates and lists must be valid.

    Raises
    ------
    EvidenceRefused
        If the report is not authentic, or its policy or version is not accepted.
    """
    report, crls = SnpReport(raw), [read_file(folder, name) for name in rules.crls]
    roots = rules.read_roots(folder, PINNED)
    try:
        with warnings.catch_warnings():  # AMD's certificates have the serial number 0
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            chain = [x509.load_der_x509_certificate(one) for one in certificates]
            verify_chain(chain, roots, crls=crls, at=at)
            _check_key(chain[0], report)
    except UNREADABLE as error:
        raise EvidenceRefused("certificates", f"a certificate cannot be read: {error}") from None
    _check_policy(report, rules)
    return Claims(report.report_data, report.registers)


def _check_key(leaf: x509.Certificate, report: SnpReport) -> None:
    """Check a report against the certificate of its key."""
    kind = _KEYS.get(report.signing_key)
    names = [one.value for one in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [kind]:
        raise EvidenceRefused("key", f"the report is signed by {kind}, the certificate of {names}")
    key = leaf.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise EvidenceRefused("key", "expected a key of the curve P-384")
    try:
        key.verify(report.signature, report.signed, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        raise EvidenceRefused(
            "signature", "the report is not signed by the certified key"
        ) from None
    extensions = {one.oid.dotted_string: one.value for one in leaf.extensions}
    contents = {
        oid: one.value
        for oid, one in extensions.items()
        if isinstance(one, x509.UnrecognizedExtension)
    }
    certified = {
        name: _read_integer(contents.get(f"{_OID}.3.{_VERSION_OIDS[name]}", b""))
        for name in report.tcb
    }
    if certified != report.tcb:
        raise EvidenceRefused(
            "TCB", f"the certificate is of the version {certified}, the report of {report.tcb}"
        )
    chip = contents.get(f"{_OID}.4", b"")
    if report.signing_key == 0 and (
        len(chip) not in (8, 64) or chip.ljust(64, b"\0") != report.chip_id
    ):
        raise EvidenceRefused("chip", "the certificate is of another chip than the report")


def _read_integer(der: bytes) -> int | None:
    """Return a DER integer below 65,536, or None."""
    is_integer = 3 <= len(der) <= 4 and der[:2] == bytes([2, len(der) - 2])
    return int.from_bytes(der[2:], "big", signed=True) if is_integer else None


def _check_policy(report: SnpReport, rules: AmdRules) -> None:
    if report.policy & _DEBUG:
        raise EvidenceRefused("debug", "the policy of the virtual machine allows debugging")
    if report.policy & _MIGRATION:
        raise EvidenceRefused("migration", "the policy allows a migration agent")
    if report.vmpl != rules.vmpl:
        raise EvidenceRefused("VMPL", f"expected level {rules.vmpl}, found {report.vmpl}")
    low = {n: least for n, least in rules.min_tcb.items() if report.tcb.get(n, -1) < least}
    if low:
        raise EvidenceRefused(
            "TCB", f"expected at least {low}, found {report.tcb}; the platform needs updates"
        )
