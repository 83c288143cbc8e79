"""Votes of providers' classifiers over a real broker."""

import json
import re

import httpx
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.metrics import balanced_accuracy_score
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.datasets import Schema
from fedneighbors.errors import FederationError
from fedneighbors.service import ServiceError
from fedneighbors.service._access_log import AccessLog, compare_logs
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.service._votes import (
    MAX_ROWS,
)
from tests.naive import votes as naive
from tests.processes import LIMIT_S
from tests.service.deployment import deployed
from tests.service.voters import (
    CLASSES,
    OWNERS,
    ROWS,
    SCHEMA,
    SECTION,
    Odd,
    fit_models,
    make_section,
    make_table,
    read,
    write_models,
)


@pytest.fixture(scope="module")
def models():
    return fit_models()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, models):
    folder = tmp_path_factory.mktemp("votes")
    write_models(folder, models)
    return folder


@pytest.fixture(scope="module")
def deployment(folder):
    collections = {
        "outcomes": {**SECTION, "providers": OWNERS},
        "places": {"metric": "euclidean", "providers": ["north"]},
    }
    (folder / "state").mkdir(exist_ok=True)
    with deployed(folder, collections) as running:
        for owner in OWNERS:
            running.start(owner, {"outcomes": read(folder, owner)})
        running.wait(*OWNERS)
        yield running


def expected_votes(model, rows):
    """Return the probabilities of a model for rows as mappings, asked directly."""
    frame = pd.DataFrame([{name: row.get(name) for name in SCHEMA.column_names} for row in rows])
    frame = frame.astype({"age": float, "lactate": float})
    frame["sex"] = frame["sex"].astype(make_table(1, 0)["sex"].dtype)
    has_names = hasattr(model, "feature_names_in_")
    found = model.predict_proba(frame if has_names else SCHEMA.encode_all(frame))
    votes = np.zeros((len(rows), len(CLASSES)))
    votes[:, [CLASSES.index(label) for label in model.classes_]] = found
    return votes


def expected_score(model, table):
    rows = table.drop(columns="outcome").to_dict("records")
    labels = np.array(CLASSES)[expected_votes(model, rows).argmax(axis=1)]
    return balanced_accuracy_score(table["outcome"], labels)


def test_the_answer_is_the_average_of_pooled_models(deployment, folder, models):
    with deployment.client("outcomes") as search:
        classes, probabilities = search.vote(ROWS)
        (answer,) = search.results_
    scores = {
        name: expected_score(model, pd.read_csv(folder / f"{name}.csv"))
        for name, model in models.items()
    }
    votes = [expected_votes(model, ROWS) for model in models.values()]

    assert classes == list(CLASSES)
    assert answer["weights"] == scores
    assert answer["held_out"] == dict.fromkeys(OWNERS, 120)
    assert_array_equal(probabilities, naive.average(votes, list(scores.values())))
    assert answer["labels"] == [CLASSES[k] for k in probabilities.argmax(axis=1)]
    assert answer["exact"] is True
    assert answer["answered"] == OWNERS
    assert set(answer["epochs"]) == set(OWNERS)
    assert min(scores.values()) > 0.4


def test_many_rows_are_asked_in_parts(deployment, models):
    table = make_table(230, seed=40).drop(columns="outcome")
    with deployment.client("outcomes") as search:
        _, probabilities = search.vote(table)
        weights = search.results_[0]["weights"]
        assert len(search.results_) == 3
    votes = [expected_votes(model, table.to_dict("records")) for model in models.values()]

    assert_array_equal(probabilities, naive.average(votes, [weights[name] for name in OWNERS]))


def post(deployment, path, body):
    response = httpx.post(
        f"{deployment.url}/v1/collections/{path}",
        json=body,
        headers={"Authorization": f"Bearer {deployment.token}"},
        verify=False,
        timeout=LIMIT_S,
    )
    return response.status_code, response.json()


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("outcomes/votes", {"rows": []}, "invalid-body"),
        ("outcomes/votes", {"rows": [{}] * (MAX_ROWS + 1)}, "invalid-body"),
        ("outcomes/votes", {"rows": [[1]]}, "invalid-body"),
        ("outcomes/votes", {"rows": [{}], "query": {}}, "invalid-body"),
        ("outcomes/votes", {"rows": [{"foo": 1}]}, "invalid-query"),
        ("outcomes/votes", {"rows": [{"sex": "q"}]}, "invalid-query"),
        ("outcomes/votes", {"rows": [{"age": 10**400}]}, "invalid-query"),
        ("outcomes/search", {"query": {"age": 1}}, "invalid-query"),
        ("outcomes/count", {"where": {"age": 1}}, "invalid-query"),
        ("places/votes", {"rows": [{}]}, "invalid-query"),
        ("others/votes", {"rows": [{}]}, "unknown-collection"),
    ],
)
def test_wrong_requests_are_problems(deployment, path, body, code):
    status, problem = post(deployment, path, body)
    assert problem["code"] == code
    assert status == (404 if code == "unknown-collection" else 422)


def test_the_collection_is_listed_with_its_classes(deployment):
    with deployment.client("outcomes") as search:
        found = search.describe()
        with pytest.raises(ValueError, match="has voters and no objects"):
            search.check_objects(found)
    assert found["objects"] == "voters"
    assert found["n_objects"] == 3
    assert found["classes"] == list(CLASSES)
    assert found["columns"] == {
        "age": [0.0, 110.0],
        "lactate": [None, None],
        "sex": ["f", "m", "x"],
    }


@pytest.fixture
def lone(folder, tmp_path):
    """Return a deployment with three providers that are not started, and a log of each."""
    (tmp_path / "votes.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    with deployed(tmp_path, {"outcomes": {**SECTION, "providers": OWNERS}}) as running:
        running.logs = {name: AccessLog(tmp_path / f"{name}.sqlite") for name in OWNERS}
        running.offer = lambda owner, policy=None: running.start(
            owner, {"outcomes": read(folder, owner, policy, log=running.logs[owner])}
        )
        yield running
        for log in running.logs.values():
            log.close()


def test_logs_metrics_and_plain_logs_have_no_content(lone, caplog):
    for owner in OWNERS:
        lone.offer(owner)
    lone.wait(*OWNERS)
    caplog.set_level("DEBUG")
    with lone.client("outcomes") as search:
        search.vote([{"age": 87.125, "lactate": 31.4375, "sex": "x"}])
        (answer,) = search.results_

    (entry,) = lone.broker.log.entries()
    assert (entry["kind"], entry["size"], entry["outcome"]) == ("votes", 1, "")
    for owner, log in lone.logs.items():
        (own,) = log.entries()
        assert (own["kind"], own["size"], own["n_objects"]) == ("VoteRequest", 1, 1)
        assert own["digest"] == entry["digest"]
        assert compare_logs(owner, log.entries(), lone.broker.log.entries()) == []
    metrics = lone.broker.metrics.encode().decode()
    assert 'kind="votes",outcome="ok"' in metrics
    written = [json.dumps(entry), metrics, caplog.text]
    written += [json.dumps(list(log.entries())) for log in lone.logs.values()]
    secret = ["87.125", "31.4375", *(str(p) for row in answer["probabilities"] for p in row)]
    assert [text for text in secret if any(text in one for one in written)] == []


def test_missing_providers_are_left_out_if_allowed(lone, models):
    for owner in ("north", "west"):
        lone.offer(owner)
    lone.wait("north", "west")
    with lone.client("outcomes") as search, pytest.raises(ServiceError) as failed:
        search.vote(ROWS)
    with lone.client("outcomes", allow_partial=True) as search:
        _, probabilities = search.vote(ROWS)
        (answer,) = search.results_

    assert (failed.value.code, failed.value.party) == ("provider-missing", "south")
    assert answer["missing"] == {"south": "it is not connected"}
    assert answer["exact"] is False
    votes = [expected_votes(models[name], ROWS) for name in ("north", "west")]
    assert_array_equal(probabilities, naive.average(votes, list(answer["weights"].values())))


def test_refusals_name_provider_and_code(lone):
    lone.offer("north", {"level": "probabilities", "max_k": 2})
    lone.offer("south", {"level": "label", "objects_per_day": 2})
    lone.offer("west", {"level": "none", "users": {"alice": {"level": "label"}}})
    lone.wait(*OWNERS)
    with lone.client("outcomes") as search:
        _, probabilities = search.vote(ROWS[:2])
        codes = []
        for rows in (ROWS[:3], ROWS[:1]):
            with pytest.raises(ServiceError) as failed:
                search.vote(rows)
            codes.append((failed.value.code, failed.value.party))
    assert codes == [("not-allowed", "north"), ("quota-spent", "south")]
    assert_array_equal(probabilities.sum(axis=1).round(12), 1)


def test_a_failing_model_is_named(lone, folder):
    for owner in ("north", "south"):
        lone.offer(owner)
    offered = read(folder, "west")
    offered.party._model = Odd(ValueError("age 87.125"))
    lone.start("west", {"outcomes": offered})
    lone.wait(*OWNERS)
    with lone.client("outcomes") as search, pytest.raises(ServiceError) as failed:
        search.vote([{"age": 87.125}])
    error = failed.value
    assert (error.status, error.code, error.party) == (502, "model-failed", "west")
    assert not error.retryable
    assert "87" not in str(error)


def test_providers_with_other_classes_are_refused(lone, folder, tmp_path):
    others = Schema(SCHEMA.columns, "outcome", ("home", "icu", "ward"))
    (folder / "others.toml").write_text(others.to_toml(), encoding="utf-8")
    section = make_section("north").model_copy(update={"schema_file": "others.toml"})
    offered = OfferedObjects.read("north", "outcomes", section, folder, secret=b"s")
    task = lone.start("north", {"outcomes": offered})
    with pytest.raises(FederationError, match="the setting 'schema' differs"):
        task.result(20)


def test_console_lists_voters_and_shows_lines_to_copy(deployment):
    with deployment.client("outcomes") as search:
        browser = search._client
        page = browser.get("/console/sign-in").text
        form = {"token": deployment.token, "form_token": re.search("[0-9a-f]{64}", page)[0]}
        assert browser.post("/console/sign-in", data=form).status_code == 303
        overview = browser.get("/console/overview").text
        page = browser.get("/console/search/outcomes")
        assert browser.get("/console/search").status_code == 200
        assert browser.get("/console/policies").status_code in (200, 403)

    assert "3 voters" in overview
    assert page.status_code == 200
    assert "search.vote([{" in page.text
    assert "fedneighbors vote" in page.text
    assert "/v1/collections/outcomes/votes" in page.text


def test_queries_in_the_background_have_the_same_answer(deployment):
    url = f"{deployment.url}/v1/collections/outcomes/votes"
    with deployment.client("outcomes") as search:
        _, expected = search.vote(ROWS)
        headers = {"Prefer": "respond-async", "Idempotency-Key": "votes-1"}
        started = search._client.post(url, json={"rows": ROWS}, headers=headers)
        place = started.headers["location"]
        events = search._client.get(f"{place}/events").text
        found = search._client.get(place).json()

    assert started.status_code == 202
    assert "event: done" in events
    assert found["answer"]["probabilities"] == expected.tolist()


def test_command_prints_labels_and_weights(deployment, monkeypatch):
    monkeypatch.setenv("FEDNEIGHBORS_TOKEN", deployment.token)
    words = [deployment.url, "outcomes", "--certificate", str(deployment.certificate)]
    run = CliRunner().invoke(app, ["vote", *words, json.dumps(ROWS)])
    assert run.exit_code == 0, run.output
    assert "icu" in run.output
    assert "north weighs 0.7" in run.output

    whole = CliRunner().invoke(app, ["vote", *words, json.dumps(ROWS[0]), "--json"])
    assert json.loads(whole.output)["classes"] == list(CLASSES)
    wrong = CliRunner().invoke(app, ["search", *words, "{}"])
    assert wrong.exit_code == 1
    assert "use `fedneighbors vote`" in " ".join(wrong.output.split())


def test_provider_check_prints_the_score(folder):
    config = """format = 1
[provider]
name = "north"
broker = "https://127.0.0.1:1"
[collections.outcomes]
metric = "votes"
schema = "votes.toml"
policy = { level = "label" }
source = { kind = "model", file = "north.skops", held_out = "north.csv" }
"""
    (folder / "provider.toml").write_text(config)
    words = ["provider", "check", "--config", str(folder / "provider.toml")]
    run = CliRunner().invoke(app, words)
    assert run.exit_code == 0, run.output
    assert "outcomes: votes, balanced accuracy 0.721 on 120 held-out rows" in run.output
    refused = CliRunner().invoke(app, ["provider", "forget", "outcomes", "p1", *words[2:]])
    assert "has a voter and no objects" in " ".join(refused.output.split())
