"""``fedneighbors preflight`` checks ports and tables before a deployment."""

import socket

from typer.testing import CliRunner

from fedneighbors.cli._main import app


def call(*arguments):
    return CliRunner().invoke(app, ["preflight", *map(str, arguments)])


def test_port_in_use_exits_with_1_and_a_one_line_error():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = call("--port", port)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: port {port} of 127.0.0.1 is in use")
    assert len(result.stderr.splitlines()) == 1


def test_free_port_and_readable_table_pass(tmp_path):
    table = tmp_path / "patients.csv"
    table.write_text("age,dose,outcome\n30,1,well\n40,2,ill\n", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    result = call("--port", port, "--data", table, "--label", "outcome")

    assert result.exit_code == 0, result.stderr
    assert f"port {port} of 127.0.0.1 is free" in result.stdout
    assert "2 rows, 2 columns" in result.stdout


def test_a_table_of_a_spreadsheet_is_read(tmp_path):
    rows = "".join(f"p{n};{n},5;{'ä' if n % 2 else 'b'}\n" for n in range(300))
    (tmp_path / "stays.csv").write_bytes(f"patient;dose;outcome\n{rows}".encode("cp1252"))
    command = ["--data", tmp_path / "stays.csv", "--label", "outcome", "--encoding", "cp1252"]

    result = call(*command, "--id", "patient")

    assert result.exit_code == 0, result.stderr
    assert "300 rows, 1 columns" in result.stdout


def test_table_without_the_label_column_is_refused(tmp_path):
    table = tmp_path / "patients.csv"
    table.write_text("age,dose\n30,1\n", encoding="utf-8")

    result = call("--data", table, "--label", "outcome")

    assert result.exit_code == 1
    assert "outcome" in result.stderr


def test_call_without_options_is_a_usage_error():
    assert call().exit_code == 2
