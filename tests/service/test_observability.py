"""Traces of queries by the SDK of OpenTelemetry, and the dashboard of the metrics."""

import json
import re
import subprocess
import sys

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from fedneighbors.service import ServiceError, _tracing
from fedneighbors.service._config import OfferSection
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.service._tracing import read_parent, record_span, trace_work
from tests.architecture.tree import ROOT
from tests.processes import LIMIT_S
from tests.service import voters
from tests.service.deployment import deployed

OWNERS = ["north", "south"]
MARK = "canary"
KEYS = {
    "fedneighbors.query": {"collection", "query_id"},
    "fedneighbors.round": {"request"},
    "fedneighbors.call": {"provider"},
    "fedneighbors.search": {"collection", "query_id", "provider"},
}


@pytest.fixture
def exporter(monkeypatch):
    """Collect spans of the SDK, which would be global otherwise."""
    found, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(_tracing, "tracer", provider.get_tracer("tests"))
    return found


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    kinds = {"metric": "edit", "filters": {"site": "text"}}
    sections = {
        "titles": {**kinds, "providers": OWNERS},
        "outcomes": {**voters.SECTION, "providers": OWNERS},
    }
    voters.write_models(folder, voters.fit_models())
    with deployed(folder, sections, queries={"max_k": 10}) as running:
        for provider in OWNERS:
            lines = [f"{MARK}-id-{row},{MARK}-{provider}-{row},{MARK}-site" for row in range(9)]
            (folder / f"titles-{provider}.csv").write_text("\n".join(["id,title,site", *lines]))
            section = {
                **kinds,
                "source": {"file": f"titles-{provider}.csv", "columns": ["title"], "id": "id"},
                "policy": {"level": "distances", "payload": ["site"]},
            }
            read = OfferSection.model_validate(section)
            offer = OfferedObjects.read(provider, "titles", read, folder, secret=b"")
            voter = voters.read(folder, provider)
            running.start(provider, {"titles": offer, "outcomes": voter})
        running.wait(*OWNERS)
        yield running


def search(deployment, **options):
    """Search for a marked text; return the answer."""
    with deployment.client("titles", payload=True, purpose=f"{MARK}-purpose", **options) as client:
        client.kneighbors([f"{MARK}-query"], 3, where={"site": f"{MARK}-site"})
        return client.results_[0]


def find(spans, name):
    return [span for span in spans if span.name == f"fedneighbors.{name}"]


@pytest.mark.parametrize("algorithm", ["baseline", "dann"])
def test_a_trace_joins_the_broker_and_the_providers(deployment, exporter, algorithm):
    answer = search(deployment, algorithm=algorithm)

    spans = exporter.get_finished_spans()
    (query,) = find(spans, "query")
    rounds, calls, searches = (find(spans, name) for name in ("round", "call", "search"))
    assert len(rounds) == answer["rounds"]
    assert {span.context.trace_id for span in spans} == {query.context.trace_id}
    assert {span.parent.span_id for span in rounds} == {query.context.span_id}
    for part in (calls, searches):
        pairs = {(span.parent.span_id, span.attributes["fedneighbors.provider"]) for span in part}
        assert pairs <= {(one.context.span_id, name) for one in rounds for name in OWNERS}
        assert len(pairs) == len(part) == len(calls)
    assert all(span.parent.is_remote for span in searches)
    assert query.attributes["fedneighbors.query_id"] == answer["query_id"]
    assert {span.attributes["fedneighbors.query_id"] for span in searches} == {answer["query_id"]}
    assert all(span.start_time <= span.end_time for span in spans)


def test_spans_have_names_and_nothing_of_queries_and_objects(deployment, exporter):
    with deployment.client("titles") as client:
        client.count([f"{MARK}-query"], 3.0)
        client.radius_neighbors([f"{MARK}-north-3"], 0)
        client.explain([f"{MARK}-query"], 2)
        with pytest.raises(ServiceError, match="invalid-query"):
            client.kneighbors([f"{MARK}-query"], 2, where={"site": {">=": MARK}})
        with pytest.raises(ServiceError, match="too-many-objects"):
            client.radius_neighbors([f"{MARK}-query"], 99.0)
    search(deployment)

    spans = exporter.get_finished_spans()
    assert {span.name for span in spans} == set(KEYS)
    for span in spans:
        names = {f"fedneighbors.{name}" for name in KEYS[span.name]}
        assert set(span.attributes) - {"error.type"} == names
        assert all(isinstance(value, str) for value in span.attributes.values())
        assert (span.events, span.links, span.status.description) == ((), (), None)
        assert MARK not in span.to_json()
        assert "alice" not in span.to_json()
    errors = [span.attributes["error.type"] for span in spans if "error.type" in span.attributes]
    assert "TooManyObjects" in errors


def test_spans_of_votes_have_names_and_nothing_of_rows(deployment, exporter):
    with deployment.client("outcomes") as client:
        client.vote(voters.ROWS)
        (answer,) = client.results_

    spans = exporter.get_finished_spans()
    assert {span.name for span in spans} == set(KEYS)
    for span in spans:
        assert set(span.attributes) == {f"fedneighbors.{name}" for name in KEYS[span.name]}
        assert span.attributes.get("fedneighbors.query_id", "") in ("", answer["query_id"])
        assert span.attributes.get("fedneighbors.provider", "") in ("", *OWNERS)
        assert (span.events, span.links, span.status.description) == ((), (), None)


def test_a_provider_that_does_not_answer_is_marked(deployment, exporter, monkeypatch):
    link = deployment.broker.registry.links["south"]
    monkeypatch.setattr(link, "request", lambda *_: None)

    with pytest.raises(ServiceError, match="provider-missing"):
        search(deployment, deadline_s=0.3)

    spans = exporter.get_finished_spans()
    calls = {span.attributes["fedneighbors.provider"]: span for span in find(spans, "call")}
    assert calls["south"].attributes["error.type"] == "missing"
    assert "error.type" not in calls["north"].attributes
    assert find(spans, "query")[0].attributes["error.type"] == "PartyMissing"


def test_providers_follow_the_brokers_choice_of_traces(deployment, exporter, monkeypatch):
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(_tracing, "tracer", provider.get_tracer("tests"))

    search(deployment)

    assert exporter.get_finished_spans() == ()


def test_a_parent_that_is_none_begins_a_trace(exporter):
    for parent in ("", "x", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "00-" + "a" * 9999):
        record_span("search", 1, 2, parent=parent, provider="north")
    assert [span.parent for span in exporter.get_finished_spans()] == [None] * 4
    assert read_parent() == ""
    with trace_work("query", collection="titles"):
        parent = read_parent()
        record_span("call", 3, parent=parent, provider="north")
    call, query = exporter.get_finished_spans()[4:]
    assert call.parent.span_id == query.context.span_id
    assert parent == f"00-{query.context.trace_id:032x}-{query.context.span_id:016x}-01"


def run_alone(program):
    """Run a program in a new process; return its output and its errors."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return done.stdout, done.stderr


def test_without_opentelemetry_nothing_is_recorded():
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from fedneighbors.service._tracing import read_parent, record_span, trace_work, tracer\n"
        "with trace_work('query', collection='titles'):\n"
        "    record_span('call', 1, parent=read_parent(), provider='north')\n"
        "    print(tracer, repr(read_parent()))\n"
    )
    assert run_alone(program) == ("None ''\n", "")


def test_a_provider_of_tracers_that_is_set_later_records_spans():
    program = (
        "from fedneighbors.service._tracing import read_parent, record_span, trace_work\n"
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk import trace as sdk\n"
        "from opentelemetry.sdk.trace.export import SimpleSpanProcessor\n"
        "from opentelemetry.sdk.trace.export import in_memory_span_exporter as memory\n"
        "def work():\n"
        "    with trace_work('query', collection='titles'):\n"
        "        record_span('call', 1, parent=read_parent(), provider='north')\n"
        "work()\n"
        "found, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()\n"
        "provider.add_span_processor(SimpleSpanProcessor(found))\n"
        "trace.set_tracer_provider(provider)\n"
        "work()\n"
        "print([span.name for span in found.get_finished_spans()])\n"
    )
    assert run_alone(program) == ("['fedneighbors.call', 'fedneighbors.query']\n", "")


def test_the_dashboard_names_metrics_and_labels_that_exist(deployment):
    search(deployment)
    token = deployment.broker.state.new_token("prometheus", 1, ("metrics",))
    headers = {"Authorization": f"Bearer {token}"}
    metrics = httpx.get(
        f"{deployment.url}/metrics", headers=headers, verify=False, timeout=LIMIT_S
    ).text
    series = dict(re.findall(r"^(fedneighbors_\w+)(?:\{(.*)\})? ", metrics, re.MULTILINE))

    board = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text("utf-8"))

    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [one["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    named = {name for query in queries for name in re.findall(r"fedneighbors_\w+", query)}
    assert named <= set(series)
    assert {re.sub("_(sum|count|bucket|total)$", "", name) for name in named} == {
        re.sub("_(sum|count|bucket|total|created)$", "", name) for name in series
    }
    labels = {label for text in series.values() for label in re.findall(r"(\w+)=", text)}
    used = " ".join(queries)
    assert set(re.findall(r"[{,] ?(\w+)[!=]", used)) <= labels
    grouped = " ".join(re.findall(r"by \(([^)]*)\)", used))
    assert set(re.findall(r"\w+", grouped)) == labels
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
