"""``fedneighbors bench`` against a broker with two providers."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.errors import DataError
from fedneighbors.service._bench import N_DRAWN, draw_queries
from tests.service.deployment import deployed, offered

PRIVACY = {"epsilon": 1.0, "delta": 1e-6, "grid_s": 0.0}
NAMES = ("north", "south")
OBJECTS = {
    "points": ("euclidean", np.arange(12.0).reshape(6, 2)),
    "private": ("euclidean", np.arange(12.0).reshape(6, 2)),
    "titles": ("edit", ["federated search", "graph search"]),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    sections = {
        name: {"metric": metric, "providers": NAMES} for name, (metric, _) in OBJECTS.items()
    }
    sections["private"] |= {"algorithm": "dann*", "privacy": PRIVACY, "tie_key": "0"}
    with deployed(folder, sections) as deployment:
        for provider in NAMES:
            offers = {
                name: offered(
                    provider, name, metric, objects, tie_key="0" if name == "private" else ""
                )
                for name, (metric, objects) in OBJECTS.items()
            }
            deployment.start(provider, offers)
        deployment.wait(*NAMES)
        yield deployment


def call(deployment, collection, *options, token=None, as_json=True):
    words = ["bench", deployment.url, collection, "--certificate", str(deployment.certificate)]
    words += ["--seconds", "0.2", "-k", "2", *["--json"] * as_json, *options]
    environment = {"FEDNEIGHBORS_TOKEN": token or deployment.token}
    return CliRunner().invoke(app, words, env=environment)


def count_logged(deployment, collection):
    entries = list(deployment.broker.log.entries())
    assert {entry["outcome"] for entry in entries} <= {"", "running"}
    return sum(entry["collection"] == collection for entry in entries)


def test_figures_of_drawn_queries_add_up(running):
    done = call(running, "points")

    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    total = figures["queries_per_second"] * figures["seconds"]
    assert figures["queries"] == pytest.approx(total)
    assert figures["failures"] == {}
    latency = list(figures["latency_ms"].values())
    assert latency == sorted(latency)
    parts = figures["one_at_a_time_ms"]
    assert set(parts) == {"network", "broker", "slowest provider"}
    assert parts["slowest provider"] > 0
    assert count_logged(running, "points") > figures["queries"]


def test_figures_are_printed_as_tables(running):
    done = call(running, "points", "--in-flight", "3", as_json=False)

    assert done.exit_code == 0, done.output
    assert re.match(r"[\d,.]+ queries a second: [\d,]+ in 0\.\d s, k = 2, 3 at a time", done.stdout)
    for heading, names in (
        ("Latency under this load", ["50 %", "90 %", "99 %", "100 %"]),
        ("Parts of the latency", ["network", "broker", "slowest provider", "all"]),
    ):
        rows = done.stdout.partition(heading)[2].splitlines()[4 : 4 + len(names)]
        assert [re.sub(r" +[\d.,]+( +\d+)? *$", "", row).strip() for row in rows] == names
    assert done.stderr == ""


def test_queries_of_a_file_are_sent(running, tmp_path):
    path = tmp_path / "titles.txt"
    path.write_text("graph\n\nfederated\n", encoding="utf-8")
    done = call(running, "titles", "--queries", str(path), "--in-flight", "2")

    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["queries"] > 0
    digests = {e["digest"] for e in running.broker.log.entries() if e["collection"] == "titles"}
    assert len(digests) == 2


def test_a_private_collection_is_charged_only_as_agreed(running):
    done = call(running, "private")
    assert done.exit_code == 1
    assert "--charge" in done.stderr
    assert count_logged(running, "private") == 0

    done = call(running, "private", "--charge", "3", "--seconds", "30")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["queries"] == 3
    ledger = running.broker.collections["private"].ledger
    assert {ledger.spent(name).epsilon for name in NAMES} == {3}


@pytest.mark.parametrize(
    ("collection", "token", "message"),
    [
        ("titles", None, "--queries"),
        ("absent", None, "unknown-collection"),
        ("points", "fn_wrong", "status 401"),
    ],
)
def test_a_bench_that_cannot_run_is_one_line(running, collection, token, message):
    done = call(running, collection, token=token)

    assert done.exit_code == 1
    assert message in " ".join(done.stderr.split())


def test_reasons_are_named_if_no_query_is_answered(tmp_path):
    path = tmp_path / "titles.txt"
    path.write_text("graph\n", encoding="utf-8")
    with deployed(tmp_path, {"titles": {"metric": "edit", "providers": NAMES}}) as deployment:
        done = call(deployment, "titles", "--queries", str(path))

    assert done.exit_code == 1
    assert re.search(r"no query was answered, \d+ failed: [a-z-]+$", done.stderr.strip())


def test_a_user_without_the_right_to_search_stops_at_the_first_query(running):
    token = running.broker.state.new_token("bob", 1, ("count",))
    done = call(running, "points", token=token)

    assert done.exit_code == 1
    assert "forbidden" in done.stderr


def test_places_and_rows_are_drawn_within_their_ranges():
    places = np.array(draw_queries({"name": "cities", "objects": "places"}))
    assert places.shape == (N_DRAWN, 2)
    assert (np.abs(places) <= [180, 90]).all()
    columns = {"age": [20.0, 80.0], "sex": ["f", "m"], "codes": "set"}
    rows = draw_queries({"name": "patients", "objects": "rows", "columns": columns})
    assert {row["sex"] for row in rows} == {"f", "m"}
    assert all(20 <= row["age"] <= 80 and "codes" not in row for row in rows)
    with pytest.raises(DataError, match="does not tell about its rows: pass a file"):
        draw_queries({"name": "words", "objects": "rows", "columns": {"codes": "set"}})
    with pytest.raises(DataError, match="vectors"):
        draw_queries({"name": "points", "objects": "vectors", "n_columns": None})


def test_a_file_without_queries_is_an_error(running, tmp_path):
    path = tmp_path / "empty.txt"
    path.write_text("\n", encoding="utf-8")
    done = call(running, "titles", "--queries", str(path))

    assert done.exit_code == 1
    assert "expected a query in each line" in " ".join(done.stderr.split())
