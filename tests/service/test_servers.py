"""The servers that tests of databases run."""

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service import servers

RUN = """
from tests.service.servers import copy_debian, running_server
with running_server(copy_debian, ()) as server:
    print(server.folder, flush=True)
    input()
"""


def test_postgis_and_rdkit_work(postgres):
    name = postgres.new_database("CREATE TABLE places (at geography)")
    postgres.new_database("CREATE TABLE places (at geography)")  # databases are apart
    with postgres.connect(name) as connection:
        metres, same = connection.execute(
            "SELECT ST_Distance('POINT(0 0)'::geography, 'POINT(0 1)'::geography, false), "
            "tanimoto_sml(morganbv_fp('CCO'::mol), morganbv_fp('OCC'::mol))"
        ).fetchone()
    assert 111_000 < metres < 112_000
    assert same == 1


def test_pgvector_works(pgvector):
    with pgvector.connect(pgvector.new_database()) as connection:
        assert connection.execute("SELECT '[3,0]'::vector <-> '[0,4]'::vector").fetchone() == (5,)


def test_a_server_ends_with_a_process_that_is_killed(postgres):
    process = subprocess.Popen(
        [sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder = Path(process.stdout.readline().strip())
    server = int((folder / "data/postmaster.pid").read_text().split()[0])
    watch = os.pidfd_open(server)
    process.kill()
    process.communicate()
    assert -process.returncode == signal.SIGKILL
    ended, _, _ = select.select([watch], [], [], servers.START_S)
    os.close(watch)
    assert ended
    shutil.rmtree(folder)


def test_a_missing_server_fails_in_ci_and_is_skipped_elsewhere(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="install"):
        servers._check(False, "install it")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="install"):
        servers._check(False, "install it")
