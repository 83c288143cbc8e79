"""Evidence of AMD and Intel: recorded by hardware, made by test authorities, and tampered with."""

import datetime
import hashlib
import json

import dcap_qvl
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.service import _snp, _tdx
from fedneighbors.service._attestation import (
    AmdRules,
    EvidenceRefused,
    IntelRules,
    bind_report,
    hash_certificate,
)
from fedneighbors.service._dialling import check_evidence
from fedneighbors.service._messages import Evidence
from tests.service.evidence import AT, CPU_SVN, DATA, DAY, Amd, Authority, Intel, amd_extensions

AMD_AT = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
INTEL_AT = datetime.datetime(2023, 7, 1, tzinfo=datetime.UTC)
# Intel's signer of TCB information until 2025, which the folder of data lacks: published with the
# recorded responses in google/go-tdx-guest, testing/test_cases.go
TCB_SIGNER = """-----BEGIN CERTIFICATE-----
MIICizCCAjKgAwIBAgIUfjiC1ftVKUpASY5FhAPpFJG99FUwCgYIKoZIzj0EAwIw
aDEaMBgGA1UEAwwRSW50ZWwgU0dYIFJvb3QgQ0ExGjAYBgNVBAoMEUludGVsIENv
cnBvcmF0aW9uMRQwEgYDVQQHDAtTYW50YSBDbGFyYTELMAkGA1UECAwCQ0ExCzAJ
BgNVBAYTAlVTMB4XDTE4MDUyMTEwNTAxMFoXDTI1MDUyMTEwNTAxMFowbDEeMBwG
A1UEAwwVSW50ZWwgU0dYIFRDQiBTaWduaW5nMRowGAYDVQQKDBFJbnRlbCBDb3Jw
b3JhdGlvbjEUMBIGA1UEBwwLU2FudGEgQ2xhcmExCzAJBgNVBAgMAkNBMQswCQYD
VQQGEwJVUzBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABENFG8xzydWRfK92bmGv
P+mAh91PEyV7Jh6FGJd5ndE9aBH7R3E4A7ubrlh/zN3C4xvpoouGlirMba+W2lju
ypajgbUwgbIwHwYDVR0jBBgwFoAUImUM1lqdNInzg7SVUr9QGzknBqwwUgYDVR0f
BEswSTBHoEWgQ4ZBaHR0cHM6Ly9jZXJ0aWZpY2F0ZXMudHJ1c3RlZHNlcnZpY2Vz
LmludGVsLmNvbS9JbnRlbFNHWFJvb3RDQS5kZXIwHQYDVR0OBBYEFH44gtX7VSlK
QEmORYQD6RSRvfRVMA4GA1UdDwEB/wQEAwIGwDAMBgNVHRMBAf8EAjAAMAoGCCqG
SM49BAMCA0cAMEQCIB9C8wOAN/ImxDtGACV246KcqjagZOR0kyctyBrsGGJVAiAj
ftbrNGsGU8YH211dRiYNoPPu19Zp/ze8JmhujB0oBw==
-----END CERTIFICATE-----
"""


def refusal(evidence, rules, folder, *, report_data=DATA, at=AT):
    """Return the error with which evidence is refused."""
    with pytest.raises(EvidenceRefused) as info:
        check_evidence(evidence, rules, folder, report_data=report_data, at=at)
    return info.value


@pytest.fixture(scope="module")
def amd(tmp_path_factory):
    return Amd(tmp_path_factory.mktemp("amd"))


@pytest.fixture(scope="module")
def intel(tmp_path_factory):
    return Intel(tmp_path_factory.mktemp("intel"))


def test_report_data_are_a_digest_of_nonce_and_certificate():
    nonce, fingerprint = b"n" * 32, b"f" * 32
    expected = hashlib.sha512(b"fedneighbors enclave evidence 1\0" + nonce + fingerprint)
    assert bind_report(nonce, fingerprint) == expected.digest()
    with pytest.raises(ValueError, match="32 bytes"):
        bind_report(nonce, b"")


# --- recorded by hardware ---


@pytest.fixture(scope="module")
def recorded(data_folder):
    return data_folder / "attestation"


@pytest.fixture(scope="module")
def milan(recorded):
    """Return the certificates of the recorded AMD report (DER)."""
    folder = recorded / "sev-snp"
    issuers = x509.load_pem_x509_certificates((folder / "ask_ark_milan.pem").read_bytes())
    vcek = (folder / "vcek.testcer").read_bytes()
    return (vcek, *(one.public_bytes(Encoding.DER) for one in issuers))


def recorded_rules(raw, **changes):
    fields = {
        "vendor": "amd",
        "measurements": [{"measurement": raw[0x90:0xC0].hex()}],
        "min_tcb": {"boot_loader": 2, "tee": 0, "snp": 5, "microcode": 68},
        "crls": [],
    }
    return AmdRules.model_validate({**fields, **changes})


@pytest.fixture(scope="module")
def report(recorded):
    return (recorded / "sev-snp/attestation.bin").read_bytes()


def test_the_recorded_amd_report_is_authentic(recorded, report, milan, monkeypatch):
    rules, data = recorded_rules(report), bytes([1, 2, 3, 4, 5]) + bytes(59)
    error = refusal(Evidence("amd", report, milan), rules, recorded, report_data=data, at=AMD_AT)
    assert error.step == "debug"  # its policy is looked at after all signatures
    monkeypatch.setattr(_snp, "_DEBUG", 0)
    check_evidence(Evidence("amd", report, milan), rules, recorded, report_data=data, at=AMD_AT)


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"min_tcb": {"microcode": 69}}, "TCB"),
        ({"measurements": [{"measurement": "00" * 48}]}, "measurement"),
        ({"vmpl": 1}, "VMPL"),
        ({}, "report data"),
    ],
)
def test_the_recorded_amd_report_breaks_rules(recorded, report, milan, monkeypatch, changes, step):
    monkeypatch.setattr(_snp, "_DEBUG", 0)
    data = bytes(64) if step == "report data" else report[0x50:0x90]
    rules = recorded_rules(report, **changes)
    evidence = Evidence("amd", report, milan)
    assert refusal(evidence, rules, recorded, report_data=data, at=AMD_AT).step == step


@pytest.mark.parametrize(
    ("change", "at", "step"),
    [
        (lambda raw, chain: (raw[:0x90] + b"\1" + raw[0x91:], chain), AMD_AT, "signature"),
        (lambda raw, chain: (raw[:700] + b"\1" + raw[701:], chain), AMD_AT, "signature"),
        (lambda raw, chain: (raw, chain[1:]), AMD_AT, "chain"),
        (lambda raw, chain: (raw, (chain[1], chain[0], chain[2])), AMD_AT, "chain"),
        (lambda raw, chain: (raw, (chain[0], chain[2], chain[1])), AMD_AT, "root"),
        (lambda raw, chain: (raw, (chain[1], chain[1], chain[2])), AMD_AT, "chain"),
        (lambda raw, chain: (raw, (chain[0][:-1] + b"\0", *chain[1:])), AMD_AT, "chain"),
        (lambda raw, chain: (raw, chain), AMD_AT + 2200 * DAY, "validity"),
        (lambda raw, chain: (raw, chain), AMD_AT - 600 * DAY, "validity"),
        (lambda raw, chain: (raw + b"\0", chain), AMD_AT, "format"),
    ],
)
def test_a_changed_recorded_amd_report_is_refused(recorded, report, milan, change, at, step):
    changed, chain = change(report, milan)
    evidence, rules = Evidence("amd", changed, chain), recorded_rules(report)
    assert refusal(evidence, rules, recorded, at=at).step == step


def test_roots_of_amd_are_pinned_and_issue_their_chains(recorded):
    found = {}
    for name in (
        "ask_ark_milan.pem",
        "ask_ark_genoa.pem",
        "ask_ark_turin_vcek.pem",
        "milanvlek.testcer",
    ):
        content = (recorded / "sev-snp" / name).read_bytes()
        middle, root = x509.load_pem_x509_certificates(content)
        middle.verify_directly_issued_by(root)
        found[name] = hash_certificate(root)
    assert set(found.values()) == _snp.PINNED


def test_a_genoa_chain_does_not_certify_a_milan_key(recorded, report, milan):
    content = (recorded / "sev-snp/ask_ark_genoa.pem").read_bytes()
    genoa = (one.public_bytes(Encoding.DER) for one in x509.load_pem_x509_certificates(content))
    evidence = Evidence("amd", report, (milan[0], *genoa))
    assert refusal(evidence, recorded_rules(report), recorded, at=AMD_AT).step == "chain"


def split(raw, name):
    """Return the signed text and the signature of a response of Intel."""
    text, start = raw.decode().strip(), len(f'{{"{name}":')
    return text[start : text.rindex(',"signature"')], json.loads(text)["signature"]


@pytest.fixture(scope="module")
def responses(recorded):
    """Return Intel's signed texts and signatures, by the name of the file."""
    folder = recorded / "tdx"
    names = {
        "sample_tcbInfo_response": "tcbInfo",
        "sample_tcbinfo_response_v5": "tcbInfo",
        "sample_qeIdentity_response": "enclaveIdentity",
    }
    return {file: split((folder / file).read_bytes(), name) for file, name in names.items()}


def write_recorded(folder, recorded, responses, *, file="sample_tcbInfo_response", **changes):
    """Write Intel's recorded collateral into a file; return the rules."""
    tdx, quote = recorded / "tdx", (recorded / "tdx/tdx_prod_quote_SPR_E4.dat").read_bytes()
    root = (tdx / "trusted_root.pem").read_text()
    _, middle, _ = x509.load_pem_x509_certificates(
        dcap_qvl.parse_quote(quote).cert_chain_pem_bytes()
    )
    (info, info_signature), (identity, identity_signature) = (
        responses[file],
        responses["sample_qeIdentity_response"],
    )
    content = {
        "pck_crl_issuer_chain": middle.public_bytes(Encoding.PEM).decode() + root,
        "root_ca_crl": (tdx / "rootcrl.der").read_bytes().hex(),
        "pck_crl": (tdx / "pckcrl").read_bytes().hex(),
        "tcb_info_issuer_chain": TCB_SIGNER + root,
        "tcb_info": info,
        "tcb_info_signature": info_signature,
        "qe_identity_issuer_chain": TCB_SIGNER + root,
        "qe_identity": identity,
        "qe_identity_signature": identity_signature,
        **changes,
    }
    (folder / "collateral.json").write_text(json.dumps(content))
    return IntelRules.model_validate(
        {
            "vendor": "intel",
            "measurements": [{"mrtd": "00" * 48, "rtmr1": "00" * 48, "rtmr2": "00" * 48}],
            "collateral": "collateral.json",
            "statuses": ["UpToDate", "ConfigurationNeeded", "SWHardeningNeeded"],
        }
    )


def test_the_recorded_v4_quote_is_authentic_but_its_platform_old(tmp_path, recorded, responses):
    rules = write_recorded(tmp_path, recorded, responses)
    raw = (recorded / "tdx/tdx_prod_quote_SPR_E4.dat").read_bytes()[:4935]
    error = refusal(Evidence("intel", raw, ()), rules, tmp_path, at=INTEL_AT)
    # the last step of dcap-qvl, after chains, lists, signatures and identity: component 5 has
    # version 2, and the oldest level in Intel's information has 3
    assert str(error).endswith("No matching TCB level found")
    padded = Evidence("intel", raw + bytes(100), ())
    assert str(refusal(padded, rules, tmp_path, at=INTEL_AT)) == str(error)


def flip(text):
    return ("0" if text[0] != "0" else "1") + text[1:]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tcb_info_signature": flip}, "tcb_info"),
        ({"qe_identity_signature": flip}, "qe_identity"),
        ({"tcb_info": lambda text: text.replace("UpToDate", "Revoked")}, "tcb_info"),
        ({"qe_identity": lambda text: text.replace('"isvsvn":4', '"isvsvn":3')}, "qe_identity"),
        ({"pck_crl": lambda text: text[:-2] + flip(text[-2:])}, ""),
        ({"root_ca_crl": lambda text: text[:-2] + flip(text[-2:])}, ""),
        ({"tcb_info_issuer_chain": lambda text: text[text.index("-----BEGIN", 9) :]}, ""),
    ],
)
def test_changed_recorded_collateral_is_refused(tmp_path, recorded, responses, change, reason):
    write_recorded(tmp_path, recorded, responses)
    fields = json.loads((tmp_path / "collateral.json").read_text())
    changed = {name: make(fields[name]) for name, make in change.items()}
    assert all(changed[name] != fields[name] for name in changed)
    rules = write_recorded(tmp_path, recorded, responses, **changed)
    raw = (recorded / "tdx/tdx_prod_quote_SPR_E4.dat").read_bytes()[:4935]
    error = refusal(Evidence("intel", raw, ()), rules, tmp_path, at=INTEL_AT)
    assert "No matching TCB level found" not in str(error)
    assert reason in str(error)


@pytest.mark.parametrize("days", [-20, 20])
def test_recorded_collateral_is_refused_at_another_time(tmp_path, recorded, responses, days):
    rules = write_recorded(tmp_path, recorded, responses)
    raw = (recorded / "tdx/tdx_prod_quote_SPR_E4.dat").read_bytes()[:4935]
    error = refusal(Evidence("intel", raw, ()), rules, tmp_path, at=INTEL_AT + days * DAY)
    assert "No matching TCB level found" not in str(error)


def test_bytes_after_the_recorded_v4_quote_are_refused(tmp_path, recorded, responses):
    rules = write_recorded(tmp_path, recorded, responses)
    raw = (recorded / "tdx/tdx_prod_quote_SPR_E4.dat").read_bytes()
    error = refusal(Evidence("intel", raw, ()), rules, tmp_path, at=INTEL_AT)
    assert (error.step, "expected 4935 bytes" in str(error)) == ("format", True)


def test_the_v5_quote_is_refused_with_collateral_of_other_times(tmp_path, recorded, responses):
    raw = (recorded / "tdx/quote_v5_sample.dat").read_bytes()
    rules = write_recorded(tmp_path, recorded, responses, file="sample_tcbinfo_response_v5")
    error = refusal(Evidence("intel", raw, ()), rules, tmp_path, at=AT)
    assert (error.step, "2024-04-02" in str(error)) == ("revocation list", True)


def check_signature(key, signature, content):
    r, s = (int.from_bytes(signature[start : start + 32], "big") for start in (0, 32))
    key.verify(encode_dss_signature(r, s), content, ec.ECDSA(hashes.SHA256()))


@pytest.mark.parametrize(
    ("file", "n_signed"), [("tdx_prod_quote_SPR_E4.dat", 632), ("quote_v5_sample.dat", 702)]
)
def test_recorded_quotes_are_signed_up_to_the_root_of_intel(recorded, file, n_signed):
    """Everything in a quote itself, checked without dcap-qvl; nothing is missing for version 5."""
    raw = (recorded / "tdx" / file).read_bytes()
    start = n_signed + 4
    point = raw[start + 64 : start + 128]
    numbers = (int.from_bytes(point[i : i + 32], "big") for i in (0, 32))
    attestation_key = ec.EllipticCurvePublicNumbers(*numbers, ec.SECP256R1()).public_key()
    check_signature(attestation_key, raw[start : start + 64], raw[:n_signed])
    enclave = start + 134
    n_auth = int.from_bytes(raw[enclave + 448 : enclave + 450], "little")
    bound = hashlib.sha256(point + raw[enclave + 450 : enclave + 450 + n_auth]).digest()
    assert raw[enclave + 320 : enclave + 384] == bound + bytes(32)
    pem = raw[enclave + 456 + n_auth :].partition(b"\0")[0]
    leaf, middle, root = x509.load_pem_x509_certificates(pem)
    check_signature(
        leaf.public_key(), raw[enclave + 384 : enclave + 448], raw[enclave : enclave + 384]
    )
    leaf.verify_directly_issued_by(middle)
    middle.verify_directly_issued_by(root)
    assert {hash_certificate(root)} == _tdx.PINNED


def test_recorded_information_is_signed_by_intel(recorded, responses):
    """The signer's certificate expired in 2025; the information of 2026 has the same key."""
    root = x509.load_pem_x509_certificate((recorded / "tdx/trusted_root.pem").read_bytes())
    signer = x509.load_pem_x509_certificate(TCB_SIGNER.encode())
    signer.verify_directly_issued_by(root)
    assert {hash_certificate(root)} == _tdx.PINNED
    for text, signature in responses.values():
        check_signature(signer.public_key(), bytes.fromhex(signature), text.encode())


def test_the_recorded_v5_platform_is_up_to_date(recorded, responses):
    raw = (recorded / "tdx/quote_v5_sample.dat").read_bytes()
    quote, info = dcap_qvl.parse_quote(raw), json.loads(responses["sample_tcbinfo_response_v5"][0])
    extension = quote.pck_extension()
    assert info["fmspc"] == extension.fmspc.hex()
    first = info["tcbLevels"][0]
    for svns, name in ((extension.cpu_svn, "sgx"), (quote.report.tee_tcb_svn, "tdx")):
        least = [one["svn"] for one in first["tcb"][f"{name}tcbcomponents"]]
        if name == "tdx":  # the version of the module is judged by its own identity
            svns, least = svns[2:], least[2:]
        assert all(found >= low for found, low in zip(svns, least, strict=True))
    assert extension.pce_svn >= first["tcb"]["pcesvn"]
    module = next(one for one in info["tdxModuleIdentities"] if one["id"] == "TDX_01")
    assert quote.report.tee_tcb_svn[1] == 1
    assert quote.report.tee_tcb_svn[0] >= module["tcbLevels"][0]["tcb"]["isvsvn"]
    assert first["tcbStatus"] == module["tcbLevels"][0]["tcbStatus"] == "UpToDate"


# --- made by test authorities ---


@pytest.mark.parametrize("is_turin", [False, True])
def test_a_valid_amd_report_is_accepted(tmp_path, is_turin):
    made = Amd(tmp_path, turin=is_turin)
    check_evidence(made.evidence(), made.rules(), tmp_path, report_data=DATA, at=AT)


def test_the_key_of_a_cloud_may_sign_for_any_chip(amd):
    leaf = Authority("SEV-VLEK", amd.middle, is_authority=False, extensions=amd_extensions()[:-1])
    report = amd.report(signer=leaf, at_72=b"\4", at_416=bytes(64))
    evidence = Evidence("amd", report, (leaf.der, amd.middle.der, amd.root.der))
    check_evidence(evidence, amd.rules(), amd.folder, report_data=DATA, at=AT)


@pytest.mark.parametrize("version", [4, 5])
def test_a_valid_intel_quote_is_accepted(intel, version):
    evidence = intel.evidence(version=version)
    check_evidence(evidence, intel.rules(), intel.folder, report_data=DATA, at=AT)


def changed(raw, place, *, by=1):
    return raw[:place] + bytes([raw[place] ^ by]) + raw[place + 1 :]


def with_report(change):
    """Return a function that makes evidence with a changed report."""
    return lambda amd: Evidence("amd", change(amd.report()), amd.chain)


def with_leaf(issuer="middle", **options):
    """Return a function that makes evidence whose key has another certificate."""

    def make(amd):
        fields = {"is_authority": False, "extensions": amd_extensions(), **options}
        name = fields.pop("name", "SEV-VCEK")
        leaf = Authority(name, getattr(amd, issuer), **fields)
        report = amd.report(signer=leaf if leaf.key.curve.name == "secp384r1" else None)
        return Evidence("amd", report, (leaf.der, amd.middle.der, amd.root.der))

    return make


def with_strangers(amd):
    """Return evidence of authorities with the same names."""
    other = Amd(amd.folder / "other")
    return Evidence("amd", other.report(), (other.leaf.der, other.middle.der, amd.root.der))


def under_no_authority(amd):
    middle = Authority("SEV-Test", amd.root, is_authority=False)
    leaf = Authority("SEV-VCEK", middle, is_authority=False, extensions=amd_extensions())
    return Evidence("amd", amd.report(signer=leaf), (leaf.der, middle.der, amd.root.der))


AMD_CASES = {
    "no bytes": (with_report(lambda _: b""), "format"),
    "truncated": (with_report(lambda raw: raw[:-1]), "format"),
    "trailing byte": (with_report(lambda raw: raw + b"\0"), "format"),
    "old version": (lambda amd: amd.evidence(at_0=b"\1"), "format"),
    "unknown version": (lambda amd: amd.evidence(at_0=b"\6"), "format"),
    "unknown algorithm": (lambda amd: amd.evidence(at_52=b"\2"), "format"),
    "bytes after the signature": (with_report(lambda raw: changed(raw, 1100)), "format"),
    "changed measurement": (with_report(lambda raw: changed(raw, 0x90)), "signature"),
    "changed report data": (with_report(lambda raw: changed(raw, 0x50)), "signature"),
    "changed signature": (with_report(lambda raw: changed(raw, 680)), "signature"),
    "no signature": (with_report(lambda raw: raw[:672] + bytes(512)), "signature"),
    "other measurement": (lambda amd: amd.evidence(at_144=b"x"), "measurement"),
    "other host data": (lambda amd: amd.evidence(at_192=b"x"), "measurement"),
    "other nonce": (lambda amd: amd.evidence(bytes(64)), "report data"),
    "debug policy": (lambda amd: amd.evidence(at_8=b"\0\0\x0b"), "debug"),
    "migration policy": (lambda amd: amd.evidence(at_8=b"\0\0\x07"), "migration"),
    "other VMPL": (lambda amd: amd.evidence(at_48=b"\2"), "VMPL"),
    "other TCB than the key": (lambda amd: amd.evidence(at_391=b"\xff"), "TCB"),
    "other chip": (lambda amd: amd.evidence(at_416=b"x"), "chip"),
    "other kind of key": (lambda amd: amd.evidence(at_72=b"\4"), "key"),
    "no kind of key": (lambda amd: amd.evidence(at_72=b"\x1c"), "key"),
    "other name of the key": (with_leaf(name="SEV-VLEK"), "key"),
    "key of another curve": (with_leaf(curve=ec.SECP256R1()), "key"),
    "key without versions": (with_leaf(extensions=()), "TCB"),
    "key of the root": (with_leaf("root"), "chain"),
    "no certificates": (lambda amd: Evidence("amd", amd.report(), ()), "chain"),
    "no root": (lambda amd: amd.evidence(chain=amd.chain[:2]), "chain"),
    "one certificate more": (lambda amd: amd.evidence(chain=(*amd.chain, amd.root.der)), "chain"),
    "swapped chain": (
        lambda amd: amd.evidence(chain=(amd.middle.der, amd.leaf.der, amd.root.der)),
        "chain",
    ),
    "wrong root": (lambda amd: Amd(amd.folder / "stranger").evidence(), "root"),
    "strangers of the same names": (with_strangers, "chain"),
    "issuer without authority": (under_no_authority, "chain"),
    "no certificate": (lambda amd: amd.evidence(chain=(b"0", *amd.chain[1:])), "certificates"),
    "other vendor": (lambda amd: Evidence("intel", amd.report(), ()), "vendor"),
}


@pytest.mark.parametrize("case", AMD_CASES)
def test_tampered_amd_evidence_is_refused(amd, case):
    make, step = AMD_CASES[case]
    assert refusal(make(amd), amd.rules(), amd.folder).step == step


@pytest.mark.parametrize(
    ("changes", "days", "step"),
    [
        ({}, 40, "validity"),
        ({}, -40, "validity"),
        ({}, 10, "revocation list"),
        ({"min_tcb": {"microcode": 214}}, 0, "TCB"),
        ({"min_tcb": {"fmc": 0}}, 0, "TCB"),
        ({"roots": []}, 0, "root"),
        ({"roots": ["missing.pem"]}, 0, "file"),
        ({"roots": ["root.crl"]}, 0, "file"),
        ({"crls": ["missing.crl"]}, 0, "file"),
        ({"crls": ["root.pem"]}, 0, "certificates"),
        ({"crls": ["revoked.crl"]}, 0, "revocation"),
        ({"crls": ["root.crl", "middle.crl"]}, 0, "revocation"),
        ({"crls": ["other.crl"]}, 0, "revocation list"),
        ({"crls": ["middle.crl"]}, 0, "revocation"),
        ({"crls": ["empty.crl"]}, 0, "revocation list"),
        ({"crls": ["stranger.crl"]}, 0, "revocation list"),
    ],
)
def test_an_amd_report_against_other_rules_is_refused(amd, changes, days, step):
    lists = {
        "revoked": amd.root.crl(amd.middle),
        "middle": amd.middle.crl(amd.leaf),
        "empty": amd.middle.crl(),
        "other": amd.root.crl(signer=amd.middle),
        "stranger": Authority("ARK-Other").crl(),
    }
    for name, content in lists.items():
        (amd.folder / f"{name}.crl").write_bytes(content)
    rules = amd.rules(**changes)
    assert refusal(amd.evidence(), rules, amd.folder, at=AT + days * DAY).step == step


def test_lists_of_all_authorities_are_accepted(amd):
    (amd.folder / "clean.crl").write_bytes(amd.middle.crl())
    rules = amd.rules(crls=["root.crl", "clean.crl"])
    check_evidence(amd.evidence(), rules, amd.folder, report_data=DATA, at=AT)


def with_quote(change):
    return lambda intel: Evidence("intel", change(intel.quote()), ())


QE = 632 + 4 + 128 + 6  # start of the report of the quoting enclave
INTEL_CASES = {
    "no bytes": (with_quote(lambda _: b""), "format"),
    "truncated": (with_quote(lambda raw: raw[:-1]), "format"),
    "trailing byte": (with_quote(lambda raw: raw + b"x"), "format"),
    "version of SGX": (lambda intel: intel.evidence(version=3), "format"),
    "unknown version": (lambda intel: intel.evidence(version=6), "format"),
    "quote of SGX": (lambda intel: intel.evidence(tee=0), "format"),
    "other certification": (with_quote(lambda raw: changed(raw, 764)), "format"),
    "other type of key": (lambda intel: intel.evidence(key_type=3), "key type"),
    "other vendor of the enclave": (with_quote(lambda raw: changed(raw, 12)), "vendor ID"),
    "changed measurement": (with_quote(lambda raw: changed(raw, 184)), "signature is invalid"),
    "changed report data": (with_quote(lambda raw: changed(raw, 600)), "signature is invalid"),
    "changed signature": (with_quote(lambda raw: changed(raw, 640)), "signature is invalid"),
    "changed key": (with_quote(lambda raw: changed(raw, 710)), "QE report hash mismatch"),
    "changed enclave": (with_quote(lambda raw: changed(raw, QE + 10)), "Signature is invalid"),
    "changed enclave's signature": (with_quote(lambda raw: changed(raw, QE + 390)), "Signature"),
    "changed data of the enclave": (with_quote(lambda raw: changed(raw, QE + 451)), "mismatch"),
    "enclave of another key": (lambda intel: intel.evidence(bound=bytes(64)), "hash mismatch"),
    "enclave of another signer": (lambda intel: intel.evidence(leaf=intel.middle), "Signature"),
    "other maker of the enclave": (lambda intel: intel.evidence(qe=[(128, b"x")]), "MRSIGNER"),
    "other product": (lambda intel: intel.evidence(qe=[(256, b"\7")]), "ISVPRODID"),
    "enclave that can be debugged": (lambda intel: intel.evidence(qe=[(48, b"\x13")]), "QE report"),
    "old enclave": (lambda intel: intel.evidence(qe=[(258, b"\1\0")]), "QE ISVSVN"),
    "other nonce": (lambda intel: intel.evidence(bytes(64)), "report data"),
    "debug": (lambda intel: intel.evidence(attributes=b"\1\0\0\x10" + bytes(4)), "ebug"),
    "exceptions of the host": (lambda intel: intel.evidence(attributes=bytes(8)), "SEPT_VE"),
    "no root": (
        lambda intel: intel.evidence(chain=(intel.leaf.pem, intel.middle.pem)),
        "root",
    ),
    "no certificates": (lambda intel: intel.evidence(chain=("",)), "format"),
    "wrong root": (lambda intel: Intel(intel.folder / "stranger").evidence(), "root"),
    "swapped chain": (
        lambda intel: intel.evidence(chain=(intel.middle.pem, intel.leaf.pem, intel.root.pem)),
        "chain",
    ),
    "stranger's key": (
        lambda intel: intel.evidence(
            chain=(Intel(intel.folder / "stranger").leaf.pem, intel.middle.pem, intel.root.pem)
        ),
        "chain",
    ),
    "other vendor": (lambda intel: Evidence("amd", intel.quote(), ()), "vendor"),
}


@pytest.mark.parametrize("case", INTEL_CASES)
def test_tampered_intel_evidence_is_refused(intel, case):
    make, reason = INTEL_CASES[case]
    assert reason in str(refusal(make(intel), intel.rules(), intel.folder))


def other_signer(intel):
    return Authority("Intel SGX TCB Signing", curve=ec.SECP256R1(), is_authority=False)


INTEL_COLLATERAL = {
    "out of date": (lambda i: {"tcb_info": i.tcb_info("OutOfDate")}, "OutOfDate"),
    "revoked platform": (lambda i: {"tcb_info": i.tcb_info("Revoked")}, "Revoked"),
    "unknown status": (lambda i: {"tcb_info": i.tcb_info("Perfect")}, "quote"),
    "below all levels": (lambda i: {"tcb_info": i.tcb_info(tcbLevels=[])}, "TCB level"),
    "other platform": (lambda i: {"tcb_info": i.tcb_info(fmspc="00" * 6)}, "Fmspc"),
    "information of SGX": (lambda i: {"tcb_info": i.tcb_info(id="SGX")}, "quote"),
    "expired information": (
        lambda i: {"tcb_info": i.tcb_info(nextUpdate="2026-02-09T23:00:00Z")},
        "TCBInfo",
    ),
    "information of tomorrow": (
        lambda i: {"tcb_info": i.tcb_info(issueDate="2026-02-10T01:00:00Z")},
        "TCBInfo",
    ),
    "old enclave": (lambda i: {"qe_identity": i.qe_identity("OutOfDate")}, "OutOfDate"),
    "other enclave": (lambda i: {"qe_identity": i.qe_identity(mrsigner="00" * 32)}, "MRSIGNER"),
    "identity of another enclave": (lambda i: {"qe_identity": i.qe_identity(id="QE")}, "QE"),
    "expired identity": (
        lambda i: {"qe_identity": i.qe_identity(nextUpdate="2026-02-09T23:00:00Z")},
        "QE",
    ),
    "stranger's signatures": (lambda i: {"signer": other_signer(i)}, "quote"),
    "wrong signature": (lambda _: {"tcb_info_signature": "11" * 64}, "tcb_info"),
    "wrong signature of the identity": (
        lambda _: {"qe_identity_signature": "11" * 64},
        "qe_identity",
    ),
    "revoked key": (lambda i: {"pck_crl": i.middle.crl(i.leaf).hex()}, "is revoked"),
    "revoked authority": (lambda i: {"root_ca_crl": i.root.crl(i.middle).hex()}, "is revoked"),
    "revoked signer": (lambda i: {"root_ca_crl": i.root.crl(i.signer).hex()}, "certificate chain"),
    "expired list": (
        lambda i: {"pck_crl": i.middle.crl(until=AT - DAY / 2).hex()},
        "revocation list",
    ),
    "stranger's list": (
        lambda i: {"pck_crl": i.middle.crl(signer=i.leaf).hex()},
        "revocation list",
    ),
    "no list": (lambda _: {"pck_crl": ""}, "certificates"),
}


@pytest.mark.parametrize("case", INTEL_COLLATERAL)
def test_a_quote_with_other_collateral_is_refused(tmp_path, case):
    made = Intel(tmp_path)
    change, reason = INTEL_COLLATERAL[case]
    made.write_collateral(**change(made))
    assert reason in str(refusal(made.evidence(), made.rules(), tmp_path))


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1", b"\xff"])
def test_a_file_without_collateral_is_named(intel, content):
    if content is not None:
        (intel.folder / "broken.json").write_bytes(content)
    name = "missing.json" if content is None else "broken.json"
    error = refusal(intel.evidence(), intel.rules(collateral=name), intel.folder)
    assert (error.step, name in str(error)) == ("file", True)


@pytest.mark.parametrize(
    ("change", "days", "reason"),
    [
        ({}, 40, "validity"),
        ({}, 10, "revocation list"),
        ({"roots": []}, 0, "root"),
        (
            {"measurements": [{"mrtd": "00" * 48, "rtmr1": "31" * 48, "rtmr2": "32" * 48}]},
            0,
            "mrtd",
        ),
    ],
)
def test_a_quote_against_other_rules_is_refused(intel, change, days, reason):
    rules = intel.rules(**change)
    assert reason in str(refusal(intel.evidence(), rules, intel.folder, at=AT + days * DAY))


def test_owners_choose_the_accepted_states_of_a_platform(tmp_path):
    made = Intel(tmp_path)
    made.write_collateral(tcb_info=made.tcb_info("SWHardeningNeeded"))
    assert "SWHardeningNeeded" in str(refusal(made.evidence(), made.rules(), tmp_path))
    rules = made.rules(statuses=["UpToDate", "SWHardeningNeeded"])
    check_evidence(made.evidence(), rules, tmp_path, report_data=DATA, at=AT)


def test_a_platform_below_every_level_is_refused(tmp_path):
    made = Intel(tmp_path, cpu_svn=b"\2" + CPU_SVN[1:])
    assert "No matching TCB level" in str(refusal(made.evidence(), made.rules(), tmp_path))


# --- any byte ---

# steps that read what a signature covers: reached only by evidence that is authentic
CONTENT = {"report data", "measurement", "debug", "migration", "VMPL"}


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 672 + 144 - 1), by=st.integers(1, 255))
def test_any_flipped_byte_of_an_amd_report_is_refused(amd, place, by):
    evidence = Evidence("amd", changed(amd.report(), place, by=by), amd.chain)
    assert refusal(evidence, amd.rules(), amd.folder).step not in CONTENT


@settings(max_examples=200, deadline=None)
@given(one=st.integers(0, 2), place=st.integers(0), by=st.integers(1, 255), is_cut=st.booleans())
def test_any_flipped_or_cut_certificate_is_refused(amd, one, place, by, is_cut):
    chain = list(amd.chain)
    place %= len(chain[one])
    chain[one] = chain[one][:place] if is_cut else changed(chain[one], place, by=by)
    evidence = Evidence("amd", amd.report(), tuple(chain))
    assert refusal(evidence, amd.rules(), amd.folder).step not in CONTENT


@settings(max_examples=300, deadline=None)
@given(version=st.sampled_from([4, 5]), place=st.integers(0), by=st.integers(1, 255))
def test_any_flipped_byte_of_a_quote_is_refused(intel, version, place, by):
    raw = intel.quote(version=version)
    place %= raw.index(
        b"-----BEGIN"
    )  # the certificates are text, which may change in ends of lines
    evidence = Evidence("intel", changed(raw, place, by=by), ())
    assert refusal(evidence, intel.rules(), intel.folder).step not in CONTENT


@settings(max_examples=200, deadline=None)
@given(kind=st.sampled_from(["amd", "4", "5"]), size=st.integers(0), tail=st.binary(max_size=64))
def test_any_cut_or_overwritten_end_is_refused(amd, intel, kind, size, tail):
    made = amd if kind == "amd" else intel
    raw = amd.report() if kind == "amd" else intel.quote(version=int(kind))
    end = raw[: size % (len(raw) - 64)] + tail  # always too short
    chain = amd.chain if kind == "amd" else ()
    evidence = Evidence(made.rules().vendor, end, chain)
    assert refusal(evidence, made.rules(), made.folder).step not in CONTENT


@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=1300), vendor=st.sampled_from(["amd", "intel"]))
def test_any_bytes_are_refused(amd, intel, raw, vendor):
    made = amd if vendor == "amd" else intel
    evidence = Evidence(vendor, raw, amd.chain)
    assert refusal(evidence, made.rules(), made.folder).step not in CONTENT
