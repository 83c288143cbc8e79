"""Files of the folder ``deploy``: units of systemd, a container, and proxies."""

import configparser
import re
import shlex
import shutil
import subprocess

import pytest
import yaml
from typer.main import get_command

from fedneighbors.cli._main import app
from fedneighbors.service._config import BrokerConfig, QueriesSection, ServerSection
from tests.architecture.tree import ROOT

DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs/how-to/deploy-the-service.md").read_text(encoding="utf-8")
ROLES = ["broker", "provider"]
MAX_EXPOSURE = 15  # tenths of systemd-analyze


def parse_command(words):
    """Parse the words after ``fedneighbors``; return the names of the command."""
    command, context, names = get_command(app), None, []
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
        names.append(name)
    context = command.make_context(names[-1], list(words))
    assert not context.args
    return names


def read_unit(role):
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(DEPLOY / f"fedneighbors-{role}.service", encoding="utf-8")
    return parser["Service"]


def read_containerfile():
    """Return the instructions as pairs of name and rest."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


@pytest.mark.parametrize("role", ROLES)
def test_units_start_commands_in_their_folders(role):
    unit = read_unit(role)
    program, *words = shlex.split(unit["ExecStart"])

    assert parse_command(words) == [role, "serve"]
    assert program in PAGE
    assert words[-1] == f"{unit['WorkingDirectory']}/{role}.toml"
    assert unit["WorkingDirectory"] == f"/var/lib/{unit['StateDirectory']}"
    assert f"NUMBA_CACHE_DIR=/var/cache/{unit['CacheDirectory']}" in unit["Environment"]
    assert int(unit["TimeoutStopSec"]) > QueriesSection().deadline_s


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_units_are_hardened(role):
    unit = DEPLOY / f"fedneighbors-{role}.service"
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", f"--threshold={MAX_EXPOSURE}", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_containers_run_commands_without_rights():
    file = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    made = dict(read_containerfile())["RUN"]

    assert set(file["services"]) == set(ROLES)
    for role, service in file["services"].items():
        assert parse_command(service["command"]) == [role, "serve"]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        build = service["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
        for mount in service["volumes"]:
            source, target, *_ = mount.split(":")
            assert source.startswith("./") or (source in file["volumes"] and target in made)
        assert f"./{role}.toml:/srv/fedneighbors/{role}.toml:ro" in service["volumes"]
    port = ServerSection().address[1]
    assert file["services"]["broker"]["ports"] == [f"{port}:{port}"]


def test_the_image_has_no_root_and_copies_files_that_exist():
    instructions = read_containerfile()
    last = dict(instructions)

    for name, rest in instructions:
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
    assert last["USER"] == "10001:10001"
    assert last["WORKDIR"] == "/srv/fedneighbors"
    assert BrokerConfig.model_fields["state"].default.startswith("state/")


def test_commands_of_the_page_exist():
    commands = re.findall(r"bin/fedneighbors ((?:broker|provider) [a-z]+[ A-Za-z]*)", PAGE)
    commands += re.findall(r"run --rm provider ([a-zA-Z ]+)", PAGE)
    commands += [f"{role} backup x" for role in ROLES if f"{role} backup`" in PAGE]

    assert len(commands) == 5
    for command in commands:
        parse_command(command.split())
    for path in re.findall(r"deploy/([A-Za-z.-]+\w)", PAGE):
        assert (DEPLOY / path).exists() or path == "data"


def test_proxies_wait_longer_than_the_longest_query():
    for name in ("nginx-pass-through.conf", "nginx-terminate.conf"):
        text = (DEPLOY / name).read_text(encoding="utf-8")
        waits = re.findall(r"proxy(?:_read)?_timeout (\d+)s", text)
        assert [int(wait) > QueriesSection().max_deadline_s for wait in waits] == [True]


@pytest.fixture
def certificate(tmp_path):
    """Write a certificate; return the function that names it in a file of a proxy."""
    from fedneighbors.service._tls import make_certificate

    make_certificate(tmp_path / "broker.crt", tmp_path / "broker.key", ("broker.example",))

    def copy(name):
        text = (DEPLOY / name).read_text(encoding="utf-8")
        path = tmp_path / name
        path.write_text(text.replace("/etc/fedneighbors", str(tmp_path)), encoding="utf-8")
        return path

    return copy


@pytest.mark.skipif(not shutil.which("nginx"), reason="needs nginx")
def test_nginx_accepts_its_files(certificate, tmp_path):
    path = tmp_path / "nginx.conf"
    head = f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\n"
    path.write_text(f"{head}http {{ include {certificate('nginx-terminate.conf')}; }}\n")
    subprocess.run(["nginx", "-t", "-c", path], check=True)


@pytest.mark.skipif(not shutil.which("caddy"), reason="needs Caddy")
def test_caddy_accepts_its_file(certificate):
    path = certificate("Caddyfile")
    subprocess.run(["caddy", "validate", "--adapter", "caddyfile", "--config", path], check=True)
