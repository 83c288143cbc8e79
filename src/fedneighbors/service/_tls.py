"""Server certificates, and their fingerprints."""

import datetime
import hashlib
import ipaddress
import os
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_VALID_DAYS = 825  # the longest that some clients accept


def make_certificate(certificate: Path, key: Path, hosts: Sequence[str]) -> None:
    """Write a self-signed certificate and its key to new files.

    Parameters
    ----------
    certificate, key : path
        PEM files. The key's has mode 600.
    hosts : sequence of str
        Names and addresses of the server, in addition to those of this machine for itself.

    Raises
    ------
    FileExistsError
        If a file exists.
    """
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedneighbors broker")])
    names = [
        _general_name(host) for host in dict.fromkeys(("localhost", "127.0.0.1", *hosts)) if host
    ]
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))  # each clock may be off by one
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    content = private.private_bytes(pem, pkcs8, serialization.NoEncryption())
    for path, mode, text in ((key, 0o600, content), (certificate, 0o644, built.public_bytes(pem))):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def read_fingerprint(certificate: Path) -> bytes:
    """Return the SHA-256 digest of the first certificate of a PEM file.

    Raises
    ------
    ValueError
        If the file has no certificate.
    """
    loaded = x509.load_pem_x509_certificates(certificate.read_bytes())
    return hashlib.sha256(loaded[0].public_bytes(serialization.Encoding.DER)).digest()


def peer_fingerprint(connection: ssl.SSLObject | ssl.SSLSocket) -> bytes:
    """Return the SHA-256 digest of the other side's certificate."""
    return hashlib.sha256(connection.getpeercert(binary_form=True) or b"").digest()


def pinned_context(certificate: str) -> ssl.SSLContext:
    """Return a context that trusts one server certificate alone.

    Parameters
    ----------
    certificate : str
        The certificate (PEM), whatever its issuer and names.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context
