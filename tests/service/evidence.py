"""Evidence that test authorities sign, with the structure of AMD's and Intel's."""

import datetime
import hashlib
import json
import struct
from itertools import count

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID, ObjectIdentifier

from fedneighbors.service._attestation import AmdRules, IntelRules
from fedneighbors.service._messages import Evidence

DAY = datetime.timedelta(days=1)
AT = datetime.datetime(2026, 2, 10, tzinfo=datetime.UTC)
DATA = bytes(range(64))
MEASUREMENT, HOST_DATA = b"m" * 48, b"h" * 32
VERSION = {"boot_loader": 2, "tee": 0, "snp": 5, "microcode": 213}
FMSPC, CPU_SVN, PCE_SVN = bytes.fromhex("90c06f000000"), bytes([4] * 16), 13
NO_VE = bytes.fromhex("0000001000000000")  # no exceptions of the host in the guest: demanded
QE_SIGNER = b"q" * 32
_numbers = count(1000)


class Authority:
    """A certificate with its key, which may issue others."""

    def __init__(
        self, name, issuer=None, *, at=AT, curve=None, is_authority=True, serial=None, extensions=()
    ):
        self.key = ec.generate_private_key(curve or ec.SECP384R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer = issuer or self
        builder = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(signer.name)
            .public_key(self.key.public_key())
            .serial_number(next(_numbers) if serial is None else serial)
            .not_valid_before(at - 30 * DAY)
            .not_valid_after(at + 30 * DAY)
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False
            )
        )
        for oid, content in extensions:
            extension = x509.UnrecognizedExtension(ObjectIdentifier(oid), content)
            builder = builder.add_extension(extension, critical=False)
        is_small = isinstance(signer.key.curve, ec.SECP256R1)
        self.certificate = builder.sign(
            signer.key, hashes.SHA256() if is_small else hashes.SHA384()
        )
        self.der = self.certificate.public_bytes(Encoding.DER)
        self.pem = self.certificate.public_bytes(Encoding.PEM).decode()

    def crl(self, *revoked, at=AT, signer=None, until=None):
        """Return a revocation list (DER) of certificates."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.name)
            .last_update(at - DAY)
            .next_update(until or at + DAY)
            .add_extension(x509.CRLNumber(1), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        for one in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(one.certificate.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(at - DAY).build())
        built = builder.sign((signer or self).key, hashes.SHA256())
        return built.public_bytes(Encoding.DER)

    def sign(self, content, curve_bytes, hash_=None, *, order="big"):
        """Return the numbers r and s of a signature, of fixed lengths."""
        signature = self.key.sign(content, ec.ECDSA(hash_ or hashes.SHA256()))
        numbers = decode_dss_signature(signature)
        return b"".join(one.to_bytes(curve_bytes, order) for one in numbers)


# --- AMD ---


def amd_extensions(version=None, chip=b"c" * 64):
    numbers = {"boot_loader": 1, "tee": 2, "snp": 3, "microcode": 8, "fmc": 9}
    found = [
        (f"1.3.6.1.4.1.3704.1.3.{numbers[name]}", der(2, value.to_bytes(value // 128 + 1, "big")))
        for name, value in (version or VERSION).items()
    ]
    return [*found, ("1.3.6.1.4.1.3704.1.4", chip)]


class Amd:
    """Authorities, a signing key and reports like AMD's."""

    def __init__(self, folder, at=AT, *, turin=False):
        self.folder, self.at = folder, at
        chip = b"c" * 8 if turin else b"c" * 64
        self.version = {"fmc": 1, **VERSION} if turin else VERSION
        self.is_turin = turin
        self.root = Authority("ARK-Test", at=at)
        self.middle = Authority("SEV-Test", self.root, at=at)
        extensions = amd_extensions(self.version, chip)
        options = {"at": at, "is_authority": False, "serial": 1, "extensions": extensions}
        self.leaf = Authority("SEV-VCEK", self.middle, **options)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "root.pem").write_text(self.root.pem)
        (folder / "root.crl").write_bytes(self.root.crl(at=at))

    @property
    def chain(self):
        return (self.leaf.der, self.middle.der, self.root.der)

    def rules(self, **changes):
        fields = {
            "vendor": "amd",
            "measurements": [{"measurement": MEASUREMENT.hex(), "host_data": HOST_DATA.hex()}],
            "min_tcb": {"snp": 5, "microcode": 200},
            "crls": ["root.crl"],
            "roots": ["root.pem"],
        }
        return AmdRules.model_validate({**fields, **changes})

    def report(self, data=DATA, *, signer=None, **fields):
        """Return a signed report; ``fields`` are values at offsets, as ``at_8=bytes``."""
        raw = bytearray(1184)
        layout = {"boot_loader": 0, "tee": 1, "snp": 6, "microcode": 7}
        if self.is_turin:
            layout = {"fmc": 0, "boot_loader": 1, "tee": 2, "snp": 3, "microcode": 7}
            raw[0x188] = 0x1A
        struct.pack_into("<IIQ", raw, 0, 3 if self.is_turin else 2, 0, 0x30000)
        struct.pack_into("<II", raw, 0x30, 0, 1)
        raw[0x50:0x90], raw[0x90:0xC0], raw[0xC0:0xE0] = data, MEASUREMENT, HOST_DATA
        for name, place in layout.items():
            raw[0x180 + place] = self.version[name]
        raw[0x1A0:0x1E0] = (b"c" * (8 if self.is_turin else 64)).ljust(64, b"\0")
        for name, value in fields.items():
            start = int(name.removeprefix("at_"))
            raw[start : start + len(value)] = value
        signature = (signer or self.leaf).sign(
            bytes(raw[:672]), 72, hashes.SHA384(), order="little"
        )
        raw[672 : 672 + 144] = signature
        return bytes(raw)

    def evidence(self, data=DATA, *, chain=None, **fields):
        return Evidence("amd", self.report(data, **fields), chain or self.chain)


# --- Intel ---


def der(tag, content):
    """Return a DER value."""
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([0x82]) + size.to_bytes(2, "big")
    return bytes([tag]) + length + content


def _oid(text):
    first, second, *rest = map(int, text.split("."))
    encoded = bytes([40 * first + second])
    for number in rest:
        parts = [number & 127]
        while number := number >> 7:
            parts.append(number & 127 | 128)
        encoded += bytes(reversed(parts))
    return der(6, encoded)


def _pair(oid, value):
    return der(0x30, _oid(oid) + value)


def _sgx_extension(cpu_svn, pce_svn, fmspc):
    base = "1.2.840.113741.1.13.1"
    tcb = [_pair(f"{base}.2.{n + 1}", der(2, bytes([svn]))) for n, svn in enumerate(cpu_svn)]
    tcb += [_pair(f"{base}.2.17", der(2, bytes([pce_svn]))), _pair(f"{base}.2.18", der(4, cpu_svn))]
    fields = [
        _pair(f"{base}.1", der(4, bytes(16))),
        _pair(f"{base}.2", der(0x30, b"".join(tcb))),
        _pair(f"{base}.3", der(4, bytes(2))),
        _pair(f"{base}.4", der(4, fmspc)),
        _pair(f"{base}.5", der(10, b"\x01")),
    ]
    return base, der(0x30, b"".join(fields))


class Intel:
    """Authorities, a quoting enclave, quotes and collateral like Intel's."""

    def __init__(self, folder, at=AT, **extension):
        self.folder, self.at = folder, at
        p256 = {"at": at, "curve": ec.SECP256R1()}
        self.root = Authority("Intel SGX Root CA", **p256)
        self.middle = Authority("Intel SGX PCK Platform CA", self.root, **p256)
        self.signer = Authority("Intel SGX TCB Signing", self.root, is_authority=False, **p256)
        fields = {"cpu_svn": CPU_SVN, "pce_svn": PCE_SVN, "fmspc": FMSPC, **extension}
        self.leaf = Authority(
            "Intel SGX PCK Certificate",
            self.middle,
            is_authority=False,
            extensions=[_sgx_extension(**fields)],
            **p256,
        )
        self.attestation = Authority("attestation key", **p256)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "root.pem").write_text(self.root.pem)
        self.write_collateral()

    def rules(self, **changes):
        registers = {"mrtd": b"t", "rtmr1": b"1", "rtmr2": b"2"}
        fields = {
            "vendor": "intel",
            "measurements": [{name: (48 * one).hex() for name, one in registers.items()}],
            "collateral": "collateral.json",
            "roots": ["root.pem"],
        }
        return IntelRules.model_validate({**fields, **changes})

    def tcb_info(self, status="UpToDate", **changes):
        level = {
            "tcb": {
                "sgxtcbcomponents": [{"svn": 3}] * 16,
                "pcesvn": PCE_SVN,
                "tdxtcbcomponents": [{"svn": 3}, {"svn": 0}, *([{"svn": 3}] * 14)],
            },
            "tcbDate": "2024-11-13T00:00:00Z",
            "tcbStatus": status,
        }
        return {
            "id": "TDX",
            "version": 3,
            **self._dates(),
            "fmspc": FMSPC.hex(),
            "pceId": "0000",
            "tcbType": 0,
            "tcbEvaluationDataNumber": 18,
            "tdxModule": {
                "mrsigner": "00" * 48,
                "attributes": "00" * 8,
                "attributesMask": "FF" * 8,
            },
            "tcbLevels": [level],
            **changes,
        }

    def qe_identity(self, status="UpToDate", **changes):
        return {
            "id": "TD_QE",
            "version": 2,
            **self._dates(),
            "tcbEvaluationDataNumber": 18,
            "miscselect": "00000000",
            "miscselectMask": "FFFFFFFF",
            "attributes": "11" + "00" * 15,
            "attributesMask": "FBFFFFFFFFFFFFFF0000000000000000",
            "mrsigner": QE_SIGNER.hex(),
            "isvprodid": 2,
            "tcbLevels": [
                {"tcb": {"isvsvn": 4}, "tcbDate": "2024-02-15T00:00:00Z", "tcbStatus": status}
            ],
            **changes,
        }

    def _dates(self):
        moments = (self.at - DAY, self.at + DAY)
        texts = [one.strftime("%Y-%m-%dT%H:%M:%SZ") for one in moments]
        return dict(zip(("issueDate", "nextUpdate"), texts, strict=True))

    def write_collateral(self, *, tcb_info=None, qe_identity=None, signer=None, **changes):
        """Write the file of the collateral."""
        signer = signer or self.signer
        chain = signer.pem + self.root.pem
        texts = [
            json.dumps(one)
            for one in (tcb_info or self.tcb_info(), qe_identity or self.qe_identity())
        ]
        signed = [signer.sign(text.encode(), 32).hex() for text in texts]
        fields = {
            "pck_crl_issuer_chain": self.middle.pem + self.root.pem,
            "root_ca_crl": self.root.crl(at=self.at).hex(),
            "pck_crl": self.middle.crl(at=self.at).hex(),
            "tcb_info_issuer_chain": chain,
            "tcb_info": texts[0],
            "tcb_info_signature": signed[0],
            "qe_identity_issuer_chain": chain,
            "qe_identity": texts[1],
            "qe_identity_signature": signed[1],
            **changes,
        }
        (self.folder / "collateral.json").write_text(json.dumps(fields))

    def body(self, version, data, attributes):
        parts = [
            b"\x05\x00" + b"\x04" * 14,
            b"s" * 48,
            bytes(48 + 8),
            attributes,
            bytes(8),
            b"t" * 48,
            bytes(3 * 48),
            *(one * 48 for one in (b"0", b"1", b"2", b"3")),
            data,
        ]
        if version == 5:
            parts += [b"\x05\x00" + b"\x04" * 14, bytes(48)]
        return b"".join(parts)

    def quote(
        self,
        data=DATA,
        *,
        version=4,
        key_type=2,
        tee=0x81,
        attributes=NO_VE,
        qe=(),
        leaf=None,
        chain=None,
        bound=None,
    ):
        """Return a quote that the attestation key signs."""
        header = struct.pack("<HHIHH", version, key_type, tee, 0, 0)
        header += bytes.fromhex("939a7233f79c4ca9940a0db3957f0607") + bytes(20)
        body = self.body(version, data, attributes)
        if version == 5:
            body = struct.pack("<HI", 3, len(body)) + body
        signed = header + body
        point = self.attestation.key.public_key().public_numbers()
        key, auth = point.x.to_bytes(32, "big") + point.y.to_bytes(32, "big"), bytes(range(32))
        report = bytearray(384)
        report[48:64] = b"\x11" + bytes(15)
        report[128:160] = QE_SIGNER
        struct.pack_into("<HH", report, 256, 2, 4)
        report[320:352] = hashlib.sha256((bound or key) + auth).digest()
        for start, value in qe:
            report[start : start + len(value)] = value
        pem = "".join(chain or (self.leaf.pem, self.middle.pem, self.root.pem)).encode()
        inner = bytes(report) + (leaf or self.leaf).sign(bytes(report), 32)
        inner += struct.pack("<H", len(auth)) + auth + struct.pack("<HI", 5, len(pem)) + pem
        signature = self.attestation.sign(signed, 32) + key
        signature += struct.pack("<HI", 6, len(inner)) + inner
        return signed + struct.pack("<I", len(signature)) + signature

    def evidence(self, data=DATA, **options):
        return Evidence("intel", self.quote(data, **options), ())
