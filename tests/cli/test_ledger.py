"""``fedneighbors ledger`` shows, exports and verifies a ledger, and sets budgets."""

import csv
import hashlib
import io
import json

import pytest
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.errors import LedgerError
from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, PureDP
from fedneighbors.privacy.ledger._ledger import Ledger


def call(*arguments):
    return CliRunner().invoke(app, ["ledger", *map(str, arguments)], env={"COLUMNS": "160"})


def printed_words(result):
    return " ".join(result.stdout.split())


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Return the path of a ledger with two data sets, and two releases of one of them.

    The answer of the second release is stored only at the second attempt.
    """
    with Ledger(tmp_path / "north.ledger", party="north") as ledger:
        ledger.set_budget("visits", PureDP(1), note="ethics board")
        ledger.set_budget("visits", PureDP("0.5"), user="study")
        ledger.set_budget("trips", ZCDP("0.5"))
        terms = {"dataset": "visits", "user": "study", "cost": PureDP("0.25")}
        ledger.release("q1", draw=lambda: b"noised", purpose="first look", **terms)
        with monkeypatch.context() as patch:
            patch.setattr(ledger._tables, "add_answer", raise_disk_full)
            with pytest.raises(LedgerError):
                ledger.release("q2", draw=lambda: b"lost", **terms)
        ledger.release("q2", draw=lambda: b"again", **terms)
    return tmp_path / "north.ledger"


def test_verify_prints_a_head_that_later_entries_continue(path):
    head = call("verify", path).stdout.strip()
    with Ledger(path) as ledger:
        ledger.set_budget("visits", PureDP(2))

    later = call("verify", path, "--head", head)

    assert (later.exit_code, later.stdout.split(":")[0]) == (0, "10")
    assert head.startswith("9:")


def test_verify_refuses_a_head_of_another_ledger(path):
    result = call("verify", path, "--head", "3:" + "0" * 64)

    assert result.exit_code == 1
    assert "does not continue from its head" in " ".join(result.output.split())


def raise_disk_full(*_):
    raise LedgerError("the disk is full")


def test_show_lists_budgets_and_releases_with_costs(path):
    result = call("show", path)

    assert result.exit_code == 0
    output = printed_words(result)
    assert "Ledger of party north" in output
    assert "visits (all) epsilon=1 █████░░░░░ 50% epsilon=1/2" in output
    assert "visits study epsilon=1/2 ██████████ 100% epsilon=0" in output
    assert "trips (all) rho=1/2 ░░░░░░░░░░ 0% rho=1/2" in output
    assert "released visits study epsilon=1/4 q1 first look" in output
    assert "charge voided visits study epsilon=1/4 q2" in output
    assert "released visits study epsilon=1/4 q2" in output
    assert "budget set visits (all) epsilon=1 ethics board" in output
    assert "noised" not in output


def test_show_of_one_data_set_omits_the_others(path):
    output = printed_words(call("show", path, "--dataset", "trips"))

    assert "trips" in output
    assert "visits" not in output


def test_show_reports_the_number_of_omitted_lines(path):
    output = printed_words(call("show", path, "--last", 1))

    assert "5 earlier entries: raise --last, or export." in output
    assert "q1" not in output


def test_show_explains_a_ledger_without_budgets(tmp_path):
    Ledger(tmp_path / "new.ledger", party="north").close()

    output = printed_words(call("show", tmp_path / "new.ledger"))

    assert "No budget is set: every release is refused. Set one with: fedneighbors" in output


def test_show_marks_a_charge_without_an_answer(tmp_path):
    path = tmp_path / "north.ledger"
    with Ledger(path, party="north") as ledger:
        ledger.set_budget("visits", PureDP(1))
        results = []  # `show` is called after the charge, before the answer
        terms = {"dataset": "visits", "user": "study", "cost": PureDP("0.1")}
        ledger.release("q1", draw=lambda: results.append(call("show", path)) or b"noised", **terms)

    assert "charged, no answer visits study epsilon=1/10 q1" in printed_words(results[0])


@pytest.mark.parametrize(
    ("options", "budget"),
    [
        (["--epsilon", "1/3"], PureDP("1/3")),
        (["--epsilon", 1, "--delta", "1e-6"], ApproxDP(1, "1e-6")),
        (["--rho", "0.02"], ZCDP("0.02")),
    ],
    ids=str,
)
def test_budget_creates_a_ledger_and_sets_the_limit(tmp_path, options, budget):
    path = tmp_path / "new.ledger"

    result = call("budget", path, "--party", "north", "--dataset", "visits", *options)

    assert result.exit_code == 0
    assert printed_words(result).startswith(f"budget of data set visits: {budget}; spent ")
    with Ledger(path) as ledger:
        assert ledger.party == "north"
        assert [state.allowed for state in ledger.budgets()] == [budget]


def test_budget_of_a_user_is_a_separate_limit(path):
    result = call("budget", path, "--dataset", "visits", "--user", "board", "--epsilon", "0.1")

    assert "budget of user board of data set visits: epsilon=1/10" in printed_words(result)
    with Ledger(path) as ledger:
        assert ledger.left("visits", "board") == PureDP("0.1")
        assert ledger.left("visits") == PureDP("0.5")


@pytest.mark.parametrize(
    "options",
    [[], ["--delta", "1e-6"], ["--epsilon", 1, "--rho", 1], ["--rho", 1, "--delta", "1e-6"]],
    ids=str,
)
def test_a_budget_without_epsilon_or_rho_is_a_usage_error(path, options):
    result = call("budget", path, "--dataset", "visits", *options)

    assert result.exit_code == 2
    assert "give --epsilon, or --epsilon and --delta, or only --rho" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["show", "{folder}/none"], "check the path, or name the party to create a ledger"),
        (["export", "{folder}/none"], "no ledger at"),
        (["budget", "{folder}/none", "--dataset", "d", "--epsilon", 1], "no ledger at"),
        (["budget", "{path}", "--dataset", "d", "--epsilon", "much"], "epsilon as a number"),
        (["budget", "{path}", "--dataset", "d", "--epsilon", -1], "epsilon of 0 or more"),
        (
            ["budget", "{path}", "--dataset", "d", "--epsilon", 1, "--party", "south"],
            "belongs to party 'north', not to 'south'",
        ),
    ],
)
def test_a_failure_is_one_line(path, arguments, reason):
    result = call(*(str(argument).format(folder=path.parent, path=path) for argument in arguments))

    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert reason in result.stderr


def test_export_has_every_entry_but_no_answers(path):
    lines = [json.loads(line) for line in call("export", path).stdout.splitlines()]

    with Ledger(path) as ledger:
        assert [line["number"] for line in lines] == [entry.number for entry in ledger.entries()]
    kinds = "budget budget budget reserved released reserved voided reserved released"
    assert [line["kind"] for line in lines] == kinds.split()
    assert lines[4] | {"at": ""} == {
        "number": 5,
        "at": "",
        "kind": "released",
        "dataset": "visits",
        "user": "study",
        "query": "q1",
        "notion": "pure",
        "epsilon": "1/4",
        "delta": "",
        "rho": "",
        "note": "first look",
        "sha256": hashlib.sha256(b"noised").hexdigest(),
        "bytes": 6,
    }
    assert (lines[2]["epsilon"], lines[2]["rho"]) == ("", "1/2")


@pytest.mark.parametrize("options", [["--out", "{}/ledger.csv"], ["--form", "csv"]], ids=str)
def test_export_as_csv_has_the_same_entries(path, options):
    options = [option.format(path.parent) for option in options]
    lines = [json.loads(line) for line in call("export", path).stdout.splitlines()]

    result = call("export", path, *options)

    out = path.parent / "ledger.csv"
    text = out.read_bytes().decode() if out.exists() else result.stdout
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert rows == [{key: str(value) for key, value in line.items()} for line in lines]
