"""Help is fast and has an example for every command; an error is one line."""

import subprocess
import sys

import pytest
import typer
from typer.core import TyperGroup as Group
from typer.testing import CliRunner

from fedneighbors import __version__
from fedneighbors.cli._main import app

SLOW_IMPORTS = ("numba", "sklearn", "torch", "flwr", "matplotlib", "scipy", "numpy", "pandas")
COMMANDS = [
    ["demo"],
    ["run", "flynn"],
    ["run", "fedknn"],
    ["run", "fedpnn"],
    ["run", "knnper"],
    ["run", "boosting"],
    ["run", "discriminants"],
    ["run", "neighbors"],
    ["compare"],
    ["explain"],
    ["predict"],
    ["synthesize"],
    ["report"],
    ["serve"],
    ["doctor"],
    ["search"],
    ["vote"],
    ["mcp"],
    ["bench"],
    ["broker", "serve"],
    ["broker", "backup"],
    ["broker", "restore"],
    ["broker", "enrol"],
    ["broker", "admin-link"],
    ["broker", "revoke"],
    ["broker", "token"],
    ["broker", "status"],
    ["broker", "check"],
    ["broker", "log", "verify"],
    ["broker", "log", "export"],
    ["provider", "backup"],
    ["provider", "restore"],
    ["provider", "enrol"],
    ["provider", "pause"],
    ["provider", "resume"],
    ["provider", "serve"],
    ["provider", "budget"],
    ["provider", "check"],
    ["provider", "forget"],
    ["provider", "key"],
    ["provider", "snapshot"],
    ["provider", "log", "verify"],
    ["provider", "log", "export"],
    ["provider", "log", "compare"],
    ["data", "list"],
    ["data", "describe"],
    ["data", "partition"],
    ["keys", "new"],
    ["keys", "roster"],
    ["ledger", "show"],
    ["ledger", "budget"],
    ["ledger", "export"],
    ["ledger", "verify"],
    ["ledger", "reconcile"],
    ["preflight"],
    ["privacy-audit"],
    ["schema", "check"],
    ["schema", "draft"],
    ["warmup"],
]


def call(*arguments, **environment):
    return CliRunner().invoke(app, list(arguments), env=environment)


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["run", "flynn"],
        ["run", "fedknn"],
        ["run", "fedpnn"],
        ["run", "knnper"],
        ["run", "boosting"],
        ["predict"],
        ["synthesize"],
        ["ledger", "show"],
    ],
)
def test_help_imports_no_slow_packages(command):
    code = (
        "import sys\n"
        "from fedneighbors.cli._main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        f"print('loaded:', [name for name in {SLOW_IMPORTS} if name in sys.modules])"
    )

    process = subprocess.run(
        [sys.executable, "-c", code, *command, "--help"], capture_output=True, text=True, check=True
    )

    assert process.stdout.endswith("loaded: []\n")


def test_the_list_of_commands_is_complete():
    def list_commands(group):
        for name, command in group.commands.items():
            parts = list_commands(command) if isinstance(command, Group) else [[]]
            yield from ([name, *part] for part in parts)

    assert sorted(list_commands(typer.main.get_command(app))) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_every_command_shows_an_example(command):
    result = call(*command, "--help")

    assert result.exit_code == 0
    assert f"Example: fedneighbors {' '.join(command)}" in " ".join(result.stdout.split())


def test_version_is_printed():
    result = call("--version")

    assert (result.exit_code, result.stdout) == (0, f"fedneighbors {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["demo", "--parties", "many"],
        ["run", "flynn"],
        ["run", "flynn", "--data", "iris", "--partition", "random"],
        ["report"],
    ],
    ids=" ".join,
)
def test_an_invalid_command_line_exits_with_2(arguments):
    assert call(*arguments).exit_code == 2


def test_a_failure_is_one_line_on_standard_error(tmp_path):
    (tmp_path / "invalid.jsonl").write_text("no record\n")

    result = call("report", str(tmp_path / "invalid.jsonl"), "--out", str(tmp_path / "report.html"))

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(
        f"error: {tmp_path / 'invalid.jsonl'}, line 1: not a run record;"
    )
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [(["--traceback"], {}), ([], {"FEDNEIGHBORS_TRACEBACK": "1"})],
    ids=["option", "environment"],
)
def test_an_error_is_raised_if_tracebacks_are_requested(arguments, environment, tmp_path):
    result = call(*arguments, "report", str(tmp_path / "none.jsonl"), **environment)

    assert result.exit_code == 1
    assert type(result.exception).__name__ == "RecordError"


def test_the_package_is_a_command_of_its_own():
    program = [sys.executable, "-m", "fedneighbors"]

    process = subprocess.run([*program, "--version"], capture_output=True, text=True, check=False)

    assert (process.returncode, process.stdout) == (0, f"fedneighbors {__version__}\n")


@pytest.mark.parametrize(
    "program", [["-c", "from fedneighbors.cli._main import main; main()"], ["-m", "fedneighbors"]]
)
def test_the_process_exits_with_1_and_without_a_traceback(program, tmp_path):
    process = subprocess.run(
        [sys.executable, *program, "report", str(tmp_path / "none.jsonl")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 1
    assert process.stderr.count("\n") == 1
    assert "none.jsonl: cannot be read: No such file or directory" in process.stderr
