"""A Flower network of real processes on loopback, with TLS and authenticated nodes."""

import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
    "PYTHONUNBUFFERED": "1",
}


class Network:
    """A SuperLink and SuperNodes; leaving the ``with`` block kills all their processes.

    Parameters
    ----------
    folder : Path
        Folder for keys, logs and Flower's files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()

    def __enter__(self) -> "Network":
        write_certificates(self.folder)
        home = self.folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n[superlink.here]\n'
            f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.folder}/ca.crt"\n'
        )
        try:
            self._start_superlink()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_all()

    def _start_superlink(self) -> None:
        self._start(
            "superlink",
            f"flower-superlink --host 127.0.0.1 --port {self.port} --enable-supernode-auth "
            "--ssl-ca-certfile ca.crt --ssl-certfile server.pem --ssl-keyfile server.key",
        )
        log = self.log("superlink")
        wait_until(lambda: is_listening(self.port), "the SuperLink listens", log)

    def register(self, party: str, *, named: bool) -> None:
        """Register a node's key, with or without the party's name."""
        name = ["--name", party] if named else []
        self.flwr("supernode", "register", f"{party}.pub", "here", *name)

    def start_node(self, party: str, **config: Any) -> "subprocess.Popen[bytes]":
        """Start the SuperNode of a party with an existing key."""
        pairs = {"party-name": party} | {
            key.replace("_", "-"): value for key, value in config.items()
        }
        return self._start(
            party,
            f"flower-supernode --superlink 127.0.0.1:{self.port} --port {free_port()} "
            f"--root-certificates ca.crt --auth-supernode-private-key {party} --node-config",
            " ".join(f"{key}={json.dumps(value)}" for key, value in pairs.items()),
        )

    def kill_node(self, party: str) -> None:
        """Kill a node and all its child processes."""
        self._kill_all(party)

    def start_run(self, app: Path, **config: Any) -> "subprocess.Popen[str]":
        """Start a run; the process prints the log until the run ends."""
        pairs = {key.replace("_", "-"): json.dumps(value) for key, value in config.items()}
        settings = " ".join(f"{key}={value}" for key, value in pairs.items())
        return self._flwr_process("run", str(app), "here", "--stream", "--run-config", settings)

    def status(self) -> tuple[str, str]:
        """Return status and details of the latest run."""
        run, *_ = json.loads(self.flwr("list", "here", "--format", "json"))["runs"]
        return run["status"], run["status-details"]

    def flwr(self, *arguments: str) -> str:
        """Return the output of a command of the Flower CLI."""
        process = self._flwr_process(*arguments)
        printed = process.communicate()[0]
        assert process.returncode == 0, printed
        return printed

    def log(self, name: str) -> Path:
        """Return the log of the SuperLink or of a node."""
        return self.folder / f"{name}.log"

    def _flwr_process(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [BIN / "flwr", *arguments],
            cwd=self.folder,
            env=self._environment("home"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _start(self, name: str, command: str, *last: str) -> "subprocess.Popen[bytes]":
        program, *arguments = command.split()
        with self.log(name).open("wb") as log:
            return subprocess.Popen(
                [BIN / program, *arguments, *last],
                cwd=self.folder,
                env=self._environment(f"home-{name}"),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _environment(self, home: str) -> dict[str, str]:
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, **QUIET, "FLWR_HOME": str(self.folder / home), "PATH": path}

    def _kill_all(self, name: str = "") -> None:
        kill_processes(f"{self.folder}/home" + (f"-{name}\0" if name else ""))


def kill_processes(home: str) -> None:
    """Kill all processes whose FLWR_HOME begins with this path, also those in other sessions."""
    while processes := _processes(home):  # repeat, because a process may have started another
        for pid in processes:
            kill(pid)


def _processes(home: str) -> list[int]:
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"\0FLWR_HOME={home}".encode() in b"\0" + environment:
            pids.append(int(folder.name))
    return pids


def kill(pid: int) -> None:
    """Kill a process, if it still exists."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    """Return whether a connection to the port is accepted."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(
    condition: Callable[[], bool], description: str, log: Path | None = None, *, limit_s: float = 60
) -> None:
    """Return as soon as the condition is true; fail with the log after a timeout."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            text = log.read_text() if log else ""
            raise AssertionError(f"not within {limit_s} s: {description}\n{text}")
        time.sleep(0.05)


def write_node_key(path: Path) -> None:
    """Write a node's key pair, ``path`` and ``path.pub``, as ssh-keygen would."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = private_bytes(key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    path.write_bytes(private)
    path.chmod(0o600)
    path.with_name(path.name + ".pub").write_bytes(public)


def private_bytes(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    """Return a private key as unencrypted PEM."""
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def write_certificates(folder: Path) -> None:
    """Write ``ca.crt``, and ``server.pem`` and ``server.key`` for 127.0.0.1."""
    authority = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    root = certificate("test authority", authority, authority, is_ca=True)
    server = certificate("localhost", key, authority, is_ca=False)
    (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(private_bytes(key, serialization.PrivateFormat.PKCS8))


def certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    is_ca: bool,
) -> x509.Certificate:
    """Issue a certificate for 127.0.0.1."""
    now = datetime.datetime.now(datetime.UTC)
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(distinguished_name(subject))
        .issuer_name(distinguished_name("test authority"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    )
    return builder.sign(signer, hashes.SHA256())


def distinguished_name(name: str) -> x509.Name:
    """Return a distinguished name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
