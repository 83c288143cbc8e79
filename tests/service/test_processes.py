"""The service as an operator, a provider and a user run it: processes of the command line."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedneighbors.service import RemoteNeighbors, ServiceError

pytestmark = pytest.mark.e2e
COMMAND = [str(Path(sys.executable).parent / "fedneighbors")]
FILES = {"north": "federated search\nfederated learning\n", "south": "graph search\nfederated s\n"}
TIMEOUT_S = 60


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Commands:
    """Starts commands of fedneighbors, and ends those that still run."""

    def __init__(self):
        self.running = []

    def start(self, folder, *arguments):
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.running.append(process)
        return process

    def wait_for(self, process, text):
        """Read lines of a process until one contains a text; return all of them."""
        lines = []
        for line in process.stdout:
            lines.append(line)
            if text in line:
                return "".join(lines)
        raise AssertionError("".join(lines))

    def call(self, folder, *arguments, status=0):
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return (done.stdout + done.stderr).strip()

    def close(self):
        for process in self.running:
            process.kill()
            process.communicate()


@pytest.fixture
def commands():
    started = Commands()
    yield started
    started.close()


def test_two_organisations_are_searched_and_survive_restarts(commands, tmp_path):
    port = free_port()
    for name in ("broker", *FILES):
        (tmp_path / name).mkdir()
    broker = tmp_path / "broker"
    (broker / "broker.toml").write_text(
        f'format = 1\n[server]\nlisten = "127.0.0.1:{port}"\n[collections.titles]\n'
        'metric = "edit"\nproviders = ["north", "south"]\n'
    )
    for name, text in FILES.items():
        (tmp_path / name / "titles.txt").write_text(text)
        (tmp_path / name / "provider.toml").write_text(
            f'format = 1\n[provider]\nname = "{name}"\nbroker = "https://127.0.0.1:{port}"\n'
            '[collections.titles]\nmetric = "edit"\nsource = { file = "titles.txt" }\n'
        )
    server = commands.start(broker, "broker", "serve")
    commands.wait_for(server, "the broker answers at")
    assert "no collection of the configuration has the provider 'east'" in commands.call(
        broker, "broker", "enrol", "east", status=1
    )
    providers = {}
    for name in FILES:
        assert "titles: 2 objects, edit" in commands.call(tmp_path / name, "provider", "check")
        assert "enrol first" in commands.call(tmp_path / name, "provider", "serve", status=1)
        code = commands.call(broker, "broker", "enrol", name)
        commands.call(tmp_path / name, "provider", "enrol", code)
        providers[name] = commands.start(tmp_path / name, "provider", "serve")
        commands.wait_for(providers[name], "connected to")
    token = commands.call(broker, "broker", "token", "alice")
    assert "policy       ok" in commands.call(tmp_path / "north", "doctor")
    assert "north: enrolled" in commands.call(broker, "broker", "status")

    def search():
        options = {"collection": "titles", "token": token, "deadline_s": 20.0}
        certificate = broker / "state/server.crt"
        url = f"https://127.0.0.1:{port}"
        with RemoteNeighbors(url, certificate=certificate, **options) as client:
            return client.kneighbors("federated search", 3)[1][0]

    first = search()
    assert first[0] == ("north", "0")
    assert {owner for owner, _ in first} == {"north", "south"}
    providers["north"].kill()
    with pytest.raises(ServiceError, match="provider-missing"):
        search()
    providers["north"] = commands.start(tmp_path / "north", "provider", "serve")
    commands.wait_for(providers["north"], "connected to")
    assert search() == first
    commands.call(tmp_path / "south", "provider", "pause")
    commands.wait_for(providers["south"], "paused")
    with pytest.raises(ServiceError, match="provider-missing"):
        search()
    commands.call(tmp_path / "south", "provider", "resume")
    commands.wait_for(providers["south"], "connected to")
    assert search() == first
    server.send_signal(signal.SIGTERM)
    assert server.wait(TIMEOUT_S) == 0
    server = commands.start(broker, "broker", "serve")
    commands.wait_for(server, "the broker answers at")
    commands.wait_for(providers["south"], "connected to")  # again, by itself
    commands.wait_for(providers["north"], "connected to")
    assert search() == first
    for name in FILES:
        providers[name].send_signal(signal.SIGINT)
        assert providers[name].wait(TIMEOUT_S) == 0


LINE = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO fedneighbors[.]service[.]_[a-z]+: %s$"


def test_logs_have_times_and_name_links_of_providers(commands, tmp_path):
    port = free_port()
    (tmp_path / "broker.toml").write_text(
        f'format = 1\n[server]\nlisten = "127.0.0.1:{port}"\n[collections.titles]\n'
        'metric = "edit"\nproviders = ["north"]\n'
    )
    (tmp_path / "titles.txt").write_text(FILES["north"])
    (tmp_path / "provider.toml").write_text(
        f'format = 1\n[provider]\nname = "north"\nbroker = "https://127.0.0.1:{port}"\n'
        '[collections.titles]\nmetric = "edit"\nsource = { file = "titles.txt" }\n'
    )
    server = commands.start(tmp_path, "broker", "serve")
    commands.wait_for(server, "the broker answers at")
    code = commands.call(tmp_path, "broker", "enrol", "north")
    commands.call(tmp_path, "provider", "enrol", code)

    def expect(process, words, rest=""):
        assert re.search(LINE % (words + re.escape(rest)), commands.wait_for(process, words), re.M)

    provider = commands.start(tmp_path, "provider", "serve")
    expect(provider, "connected to", f" https://127.0.0.1:{port}")
    expect(server, "provider north connected")
    provider.kill()
    expect(server, "provider north disconnected", " (the connection was lost)")
    provider = commands.start(tmp_path, "provider", "serve")
    expect(server, "provider north connected")
    provider.send_signal(signal.SIGINT)
    expect(server, "provider north disconnected", " (the provider closed the link)")
    commands.start(tmp_path, "provider", "serve")
    expect(server, "provider north connected")
    commands.call(tmp_path, "broker", "revoke", "north")
    expect(server, "provider north disconnected", " (the key of the provider is revoked)")


def test_a_broker_survives_a_hangup_and_says_to_restart_it(commands, tmp_path):
    (tmp_path / "broker.toml").write_text(
        f'format = 1\n[server]\nlisten = "127.0.0.1:{free_port()}"\n[collections.titles]\n'
        'metric = "edit"\nproviders = ["north"]\n'
    )
    server = commands.start(tmp_path, "broker", "serve")
    commands.wait_for(server, "the broker answers at")
    for _ in range(2):
        server.send_signal(signal.SIGHUP)
        commands.wait_for(server, "`fedneighbors broker check` and restart the broker")
    server.send_signal(signal.SIGTERM)
    assert server.wait(TIMEOUT_S) == 0


def test_each_command_that_the_demonstration_prints_works(commands, tmp_path):
    demo = commands.start(tmp_path, "serve", "--demo", "--listen", f"127.0.0.1:{free_port()}")
    text = commands.wait_for(demo, "Ctrl-C ends")
    printed = [line for line in text.splitlines() if re.match(r"curl|python", line)]
    assert len(printed) == 3
    for line in printed:
        arguments = shlex.split(line)
        if arguments[0] == "python":
            arguments[0] = sys.executable
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
        assert "patient" in done.stdout
        assert ("glucose_mg_dl" in done.stdout) == (arguments[0] == "curl")  # names of the columns
    demo.send_signal(signal.SIGINT)
    assert demo.wait(TIMEOUT_S) == 0
    assert not list(tmp_path.iterdir())


def test_lost_keys_are_replaced_by_a_new_enrolment(commands, tmp_path):
    port = free_port()
    broker, north = tmp_path / "broker", tmp_path / "north"
    for folder in (broker, north):
        folder.mkdir()
    (broker / "broker.toml").write_text(
        f'format = 1\n[server]\nlisten = "127.0.0.1:{port}"\n[collections.titles]\n'
        'metric = "edit"\nproviders = ["north"]\n'
    )
    (north / "titles.txt").write_text(FILES["north"])
    (north / "provider.toml").write_text(
        f'format = 1\n[provider]\nname = "north"\nbroker = "https://127.0.0.1:{port}"\n'
        '[collections.titles]\nmetric = "edit"\nsource = { file = "titles.txt" }\n'
    )

    def start_broker():
        server = commands.start(broker, "broker", "serve")
        commands.wait_for(server, "the broker answers at")
        return server

    def enrol_and_search():
        code = commands.call(broker, "broker", "enrol", "north")
        commands.call(north, "provider", "enrol", code)
        provider = commands.start(north, "provider", "serve")
        commands.wait_for(provider, "connected to")
        token = commands.call(broker, "broker", "token", "alice")
        options = {"collection": "titles", "certificate": broker / "state/server.crt"}
        with RemoteNeighbors(f"https://127.0.0.1:{port}", token=token, **options) as client:
            assert client.kneighbors("federated search", 1)[1] == [[("north", "0")]]
        provider.terminate()
        assert provider.wait(TIMEOUT_S) == 0

    server = start_broker()
    enrol_and_search()
    keys = {commands.call(north, "provider", "key")}
    (north / "state/provider.pem").unlink()
    assert "enrol first" in commands.call(north, "provider", "serve", status=1)
    enrol_and_search()
    keys.add(commands.call(north, "provider", "key"))
    assert len(keys) == 2
    for lost, message in (
        (["server.crt", "server.key"], "another certificate than at the enrolment"),
        (["broker.sqlite", "broker.sqlite-wal", "broker.sqlite-shm"], "not enrolled"),
    ):
        server.send_signal(signal.SIGTERM)
        assert server.wait(TIMEOUT_S) == 0
        for name in lost:
            (broker / "state" / name).unlink(missing_ok=True)
        server = start_broker()
        assert message in commands.call(north, "provider", "serve", status=1)
        enrol_and_search()
    assert commands.call(north, "provider", "key") in keys  # the provider kept its own
