"""Quotes of Intel TDX, versions 4 and 5, verified by the package dcap-qvl."""

import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedneighbors._lazy import optional_module
from fedneighbors.service._attestation import (
    UNREADABLE,
    Claims,
    EvidenceRefused,
    IntelRules,
    read_file,
    verify_chain,
)

PINNED = frozenset({"44a0196b2b99f889b8e149e95b807a350e7424964399e885a7cbb8ccfab674d3"})
"""SHA-256 digest of the Intel SGX Root CA, which issues for TDX too."""

_VERSIONS = (4, 5)
_QE_REPORT = 6  # type of the data that certify the attestation key
_REGISTERS = {
    "mrtd": "mr_td",
    **{f"rtmr{number}": f"rt_mr{number}" for number in range(4)},
    "mrconfigid": "mr_config_id",
}


def verify_quote(raw: bytes, rules: IntelRules, *, folder: Path, at: datetime.datetime) -> Claims:
    """Verify a quote, and return its content.

    Parameters
    ----------
    raw : bytes
        The quote, with the certificates of its key.
    rules : IntelRules
        The owner's rules.
    folder : path
        Folder of the owner's files.
    at : datetime
        Time at which certificates, lists and signed information must be valid.

    Raises
    ------
    EvidenceRefused
        If the quote is not authentic, or the state of the platform is not accepted.
    MissingExtraError
        If dcap-qvl is not installed.
    """
    dcap_qvl = optional_module("dcap_qvl", "enclave")
    roots = rules.read_roots(folder, PINNED)
    try:
        quote = dcap_qvl.parse_quote(raw)
        chain = x509.load_pem_x509_certificates(quote.cert_chain_pem_bytes() or b"")
    except UNREADABLE as error:
        raise EvidenceRefused("format", str(error)) from None
    raw = _trim(raw, quote)
    policy = dcap_qvl.QuotePolicy.strict(int(at.timestamp()))
    for status in rules.statuses:
        policy = policy.allow_status(status)
    # servers have several packages and threads for each core; TDX protects against both
    policy = policy.allow_dynamic_platform(True).allow_cached_keys(True).allow_smt(True)
    try:
        text = read_file(folder, rules.collateral).decode()
        collateral = dcap_qvl.QuoteCollateralV3.from_json(text)
    except ValueError as error:
        raise EvidenceRefused(
            "file", f"{folder / rules.collateral} is no collateral: {error}"
        ) from None
    crls = [collateral.root_ca_crl, collateral.pck_crl]
    try:  # dcap-qvl checks the same, but does not name what is wrong
        verify_chain(chain, roots, crls=crls, at=at)
    except UNREADABLE as error:
        raise EvidenceRefused("certificates", str(error)) from None
    verifier = dcap_qvl.QuoteVerifier(chain[-1].public_bytes(Encoding.DER))
    try:
        verifier.verify_with_policy(raw, collateral, int(at.timestamp()), policy)
    except ValueError as error:
        raise EvidenceRefused("quote", str(error)) from None
    report = quote.report
    if report.td_attributes[0]:
        raise EvidenceRefused("debug", "the virtual machine can be debugged")
    registers = {name: getattr(report, field) for name, field in _REGISTERS.items()}
    return Claims(report.report_data, registers)


def _trim(raw: bytes, quote: Any) -> bytes:
    """Check the format of a quote; remove zeros at its end."""
    version = quote.header.version
    if not quote.is_tdx() or version not in _VERSIONS:
        raise EvidenceRefused(
            "format",
            f"expected a TDX quote of version 4 or 5, found {quote.quote_type()} {version}",
        )
    body = 48 if version == 4 else 54  # a quote of version 5 states type and size of its body
    signed = body + (584 if version == 4 else int.from_bytes(raw[50:54], "little"))
    n_bytes = signed + 4 + int.from_bytes(raw[signed : signed + 4], "little")
    kind = int.from_bytes(raw[signed + 132 : signed + 134], "little")  # after signature and key
    if kind != _QE_REPORT or len(raw) < n_bytes or any(raw[n_bytes:]):  # some hosts pad
        raise EvidenceRefused(
            "format", f"expected {n_bytes} bytes with a report of Intel's quoting enclave"
        )
    return raw[:n_bytes]
