"""Plans from given costs and from samples; replayed searches equal real ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import PartyMissing, PartyRefused
from fedneighbors.federation._inprocess import connected, run
from fedneighbors.federation._loop import gather
from fedneighbors.federation._messages import encode
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._radius import hufu
from fedneighbors.methods.fedknn.algorithm import expected_counts
from fedneighbors.methods.fedknn.metrics._function import FunctionMetric
from fedneighbors.methods.fedknn.planner._costs import (
    Costs,
    EchoRequest,
    LinkCost,
    SampleReply,
    SampleRequest,
    measure,
)
from fedneighbors.methods.fedknn.planner._plan import CANDIDATES, make_plan, star_candidate
from fedneighbors.methods.fedknn.planner._recorded import SampledProvider, replay
from fedneighbors.methods.fedknn.protocol import baseline, dann
from tests.methods.fedknn.federations import BoundedLine, Federation, federations

STAR = star_candidate(iter([(1, 2), (0, 0), (3, 1)] * 10_000).__next__)
LIMIT_S = 60.0


def noiseless():
    return 0, 0


def dann_paper_counts(query, k, *, name):
    """Run DANN with the first counts of the paper, which a test can derive."""
    return dann(query, k, name=name, estimate=expected_counts)


def dann_without_cutoff(query, k, *, name):
    return dann(query, k, name=name, with_cutoff=False, at_least=min(2, k))


WITH_PAPER_COUNTS = {"baseline": baseline, "dann": dann_paper_counts}
ALGORITHMS = [
    baseline,
    dann,
    dann_paper_counts,
    dann_without_cutoff,
    star_candidate(noiseless),
]


def sample_all(federation, k):
    """Return each provider's sample of the federation's query."""
    request = SampleRequest(repr(federation.query).encode(), k, LIMIT_S)
    return {provider.name: provider.answer(request) for provider in federation.providers()}


def record_requests(coordinator, frames):
    """Run a coordinator and record the frames of its requests by provider."""
    try:
        exchange = next(coordinator)
        while True:
            requests = exchange.requests
            if not isinstance(requests, dict):
                requests = {"": requests}
            frames.append({name: encode(request) for name, request in requests.items()})
            exchange = coordinator.send((yield exchange))
    except StopIteration as stop:
        return stop.value


@settings(max_examples=400, deadline=None)
@given(federations(), st.sampled_from(ALGORITHMS), st.integers(0, 5))
def test_recorded_providers_get_the_requests_of_real_ones(federation, algorithm, n_extra):
    query, k = repr(federation.query).encode(), federation.k
    recorded = {
        name: SampledProvider(name, sample, k=k + n_extra, limit_s=LIMIT_S)
        for name, sample in sample_all(federation, k + n_extra).items()
    }

    recorded_frames, real_frames = [], []
    replayed = replay(record_requests(algorithm(query, k, name="q"), recorded_frames), recorded)
    real = run(record_requests(algorithm(query, k, name="q"), real_frames), federation.providers())

    assert recorded_frames == real_frames
    assert replayed.answer.n_returned == real.result.n_returned
    assert replayed.answer.merged.ids == real.result.merged.ids
    assert [e.download_bytes for e in replayed.exchanges] == [r.download_bytes for r in real.rounds]


# Plans from given costs.


def make_sample(distances, *, owner, bounds_s=0.0, object_s=0.0, first_s=None, looseness=0.0):
    """Return the sample of a provider that takes the same time for each object."""
    distances = np.array(distances, float)
    steps = np.unique([*(2 ** np.arange(8)), len(distances)])
    steps = steps[steps <= len(distances)].astype(np.int64)
    return SampleReply(
        bounds=distances * (1 - looseness),
        distances=distances,
        ties=np.arange(len(distances)) * 8 + owner,
        ids=tuple(f"{owner}-{i}" for i in range(len(distances))),
        exhausted=False,
        exact=True,
        complete=True,
        open_s=0.0,
        bounds_s=bounds_s,
        first_s=object_s if first_s is None else first_s,
        steps=steps,
        reached_s=object_s * steps,
    )


def make_costs(k, *, round_trip_s, n_providers=4, link=None, **times):
    """Return costs of providers that hold the nearest objects in turn."""
    sample = {
        f"p{i}": make_sample(np.arange(k) * n_providers + i + 1, owner=i, **times)
        for i in range(n_providers)
    }
    links = dict.fromkeys(sample, link or LinkCost(round_trip_s))
    return Costs(k=k, samples=(sample,), links=links, limit_s=LIMIT_S)


def costs_by_algorithm(plan):
    """Return exchanges, objects, seconds of search and seconds on links by algorithm."""
    return {
        p.algorithm: (p.exchanges, p.n_returned, round(p.local_s, 9), round(p.link_s, 9))
        for p in plan.predictions
    }


def test_for_slow_links_the_baseline_is_planned():
    plan = make_plan(
        make_costs(64, round_trip_s=6.4, object_s=1e-6, bounds_s=1e-4),
        64,
        candidates=WITH_PAPER_COUNTS,
    )

    assert plan.algorithm == "baseline"
    assert costs_by_algorithm(plan) == {
        "baseline": (1, 256, round(64e-6, 9), 6.4),
        # 16 of each provider; then p0 continues from 61 to the cutoff 64, and its next is at 65
        "dann": (3, 64, round(1e-4 + 16.75e-6, 9), 19.2),
    }


def test_for_slow_search_dann_is_planned():
    plan = make_plan(make_costs(64, round_trip_s=0.243, object_s=0.1, bounds_s=0.01), 64)

    assert plan.algorithm == "dann"
    predicted = costs_by_algorithm(plan)
    assert predicted["baseline"] == (1, 256, 6.4, 0.243)
    assert predicted["dann"][1] < 70


def test_one_sample_gives_plans_for_every_smaller_k():
    measured = make_costs(64, round_trip_s=0.0, object_s=0.1)

    plans = {k: costs_by_algorithm(make_plan(measured, k))["baseline"] for k in (1, 3, 48, 64)}

    assert plans == {k: (1, 4 * k, round(0.1 * k, 9), 0.0) for k in plans}


def test_baseline_time_includes_preparing_the_first_object():
    measured = make_costs(8, round_trip_s=0.0, bounds_s=0.5, object_s=0.01, first_s=0.41)

    predicted = costs_by_algorithm(make_plan(measured, 8))

    assert predicted["baseline"][2] == pytest.approx(0.4 + 0.08, abs=1e-9)
    assert predicted["dann"][2] < 0.5 + 0.08


def test_local_times_add_up_for_sequential_providers():
    measured = make_costs(16, round_trip_s=0.0, object_s=0.1)

    one, two, all_together = (
        costs_by_algorithm(make_plan(measured, 16, n_parallel=n))["baseline"][2]
        for n in (1, 2, None)
    )

    assert (one, two, all_together) == (6.4, 3.2, 1.6)


def test_an_exchange_takes_as_long_as_its_slowest_provider():
    measured = make_costs(4, round_trip_s=0.0, object_s=0.1, n_providers=2)
    links = {"p0": LinkCost(1.0), "p1": LinkCost(3.0)}

    plan = make_plan(replace(measured, links=links), 4, candidates={"baseline": baseline})

    assert costs_by_algorithm(plan) == {"baseline": (1, 8, 0.4, 3.0)}
    assert plan.why.startswith("it is the only candidate; ")


def test_bytes_cost_time_on_the_link():
    slow = LinkCost(0.0, download_s=1e-3, upload_s=1e-2)
    measured = make_costs(4, round_trip_s=0.0, link=slow)
    recorded = {
        name: SampledProvider(name, sample, k=4, limit_s=LIMIT_S)
        for name, sample in measured.samples[0].items()
    }

    replayed = replay(baseline(b"", 4, name="plan"), recorded)
    (prediction,) = make_plan(measured, 4, candidates={"baseline": baseline}).predictions

    expected = sum(
        max(1e-3 * e.download_bytes[n] + 1e-2 * e.upload_bytes[n] for n in e.download_bytes)
        for e in replayed.exchanges
    )
    assert prediction.link_s == pytest.approx(expected, rel=1e-9)


def test_dann_star_can_be_planned():
    measured = make_costs(32, round_trip_s=0.007, object_s=0.1, bounds_s=0.01)
    private = {"baseline": baseline, "dann*": star_candidate(lambda: (3, 2))}

    plan = make_plan(measured, 32, candidates=private)

    predicted = costs_by_algorithm(plan)
    assert plan.algorithm == "dann*"
    assert predicted["dann*"][:2] == (3, 4 * (8 + 3) + 4 * 2)


def test_noise_of_a_plan_is_independent_by_provider():
    measured = make_costs(32, round_trip_s=0.0)

    (prediction,) = make_plan(measured, 32, candidates={"dann*": STAR}).predictions

    # the second provider's last object, the 30th of 32, leaves room for two
    assert prediction.n_returned == (8 + 1 + 2) + (8 + 2) + (8 + 3 + 1) + (8 + 1 + 2)


def test_replies_on_a_grid_take_multiples_of_its_step():
    measured = make_costs(8, round_trip_s=0.0, bounds_s=0.3, object_s=0.2)
    candidates = {"dann*": star_candidate(noiseless, grid_s=1.0)}

    predicted = costs_by_algorithm(make_plan(measured, 8, candidates=candidates))

    assert predicted["dann*"][2] == 1.0 + 1.0 + 1.0


def test_the_table_lists_each_algorithms_prediction():
    plan = make_plan(
        make_costs(8, round_trip_s=6.4, object_s=2e-3), 8, candidates=WITH_PAPER_COUNTS
    )
    plan = replace(plan, predictions=tuple(replace(p, broker_s=0.0) for p in plan.predictions))

    lines = plan.table().splitlines()

    assert lines[0] == (
        "algorithm    exchanges returned    local ms     link ms  broker ms    total ms"
    )
    assert [line.split()[:6] for line in lines[1:]] == [
        ["baseline", "1", "32", "16.00", "6400.00", "0.00"],
        ["dann", "3", "8", "5.50", "19200.00", "0.00"],
    ]
    assert str(plan) == f"baseline: {plan.why}\n{plan.table()}"
    assert plan.why.endswith("(10.5 ms more in local search and 12800.0 ms less on the link)")


# Samples from providers.


def line_provider(n):
    metric = FunctionMetric(lambda a, b: abs(a - b))
    return Provider("p0", list(range(n)), metric, decode=lambda raw: float(raw))


def test_a_sample_reports_objects_bounds_and_doubling_times():
    federation = Federation({"p0": [5.0, 1.0, 4.0, 2.0, 3.0]}, 0.0, 4, BoundedLine(0.5, 1))

    sample = sample_all(federation, 4)["p0"]

    assert sample.distances.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert sample.ids == ("1", "3", "4", "2")
    assert sample.steps.tolist() == [1, 2, 4]
    assert len(sample.bounds) == 4
    assert (sample.complete, sample.exhausted, sample.exact) == (True, False, True)


def test_a_sample_of_few_objects_ends_with_the_last_object():
    federation = Federation({"p0": [1.0, 2.0, 3.0], "p1": []}, 0.0, 9, BoundedLine(0.0, 1))

    samples = sample_all(federation, 9)

    assert samples["p0"].steps.tolist() == [1, 2, 3]
    assert samples["p0"].exhausted
    assert samples["p1"].steps.tolist() == []
    assert (samples["p1"].complete, samples["p1"].exhausted) == (True, True)


def test_a_sample_past_its_time_limit_counts_as_the_limit():
    provider = line_provider(1000)
    sample = provider.answer(SampleRequest(b"0.0", 8, 1e-9))

    assert (sample.complete, sample.ids, sample.steps.tolist()) == (False, (), [])
    measured = Costs(k=8, samples=({"p0": sample},), links={"p0": LinkCost(0.0)}, limit_s=5.0)
    prediction = make_plan(measured, 8, candidates={"baseline": baseline}).predictions[0]
    assert prediction.local_s == pytest.approx(5.0 + sample.open_s, rel=1e-9)
    assert prediction.n_returned == 8


def test_links_and_samples_are_measured():
    federation = Federation({"p0": [1.0, 4.0], "p1": [2.0, 3.0, 9.0]}, 0.0, 3, BoundedLine(0.5, 1))

    with connected(federation.providers()) as parties:
        measured = measure(parties, [b"0.0", b"5.0"], 3)

    assert (measured.k, len(measured.samples)) == (3, 2)
    assert measured.samples[1]["p1"].distances.tolist() == [2.0, 3.0, 4.0]
    assert sorted(measured.links) == ["p0", "p1"]
    assert all(link.round_trip_s > 0 for link in measured.links.values())
    assert make_plan(measured, 3).algorithm in CANDIDATES


class Recording:
    """A runtime that records the request and the parties of each exchange."""

    def __init__(self, parties):
        self.parties, self.exchanges = parties, []

    def run(self, coordinator):
        return run(
            coordinator,
            self.parties,
            on_round=lambda done: self.exchanges.append(
                (done.request, *sorted(done.download_bytes))
            ),
        )


def test_providers_on_one_machine_are_measured_in_turn():
    federation = Federation({"p0": [1.0], "p1": [2.0]}, 0.0, 1, BoundedLine(0.0, 1))
    simultaneous, sequential = (
        Recording(federation.providers()),
        Recording(federation.providers()),
    )

    measure(simultaneous, [b"0.0"], 1)
    measure(sequential, [b"0.0"], 1, sequential=True)

    sample, echo = "SampleRequest", "EchoRequest"
    expected_simultaneous = [(sample, "p0", "p1"), *[(echo, "p0", "p1")] * 9, (sample, "p0", "p1")]
    assert simultaneous.exchanges == expected_simultaneous
    echoes = [*[(echo, "p0")] * 9, *[(echo, "p1")] * 9, (sample, "p0"), (sample, "p1")]
    assert sequential.exchanges == [(sample, "p0", "p1"), *echoes]


def test_an_error_of_a_sample_names_the_provider():
    federation = Federation({"p0": [1.0], "p1": [2.0]}, 0.0, 1, BoundedLine(0.0, 1))
    providers = federation.providers()

    class MissingParty:
        def run(self, coordinator):
            next(coordinator)
            return coordinator.send(replies)

    def echo():
        return (yield gather(EchoRequest(b"", 0)))

    replies = replace(run(echo(), providers).result, missing={"p1": "asleep"})
    with pytest.raises(PartyMissing, match="p1"):
        measure(MissingParty(), [b"0.0"], 1)
    with connected(providers) as parties, pytest.raises(PartyRefused, match="p0"):
        measure(parties, [b"no number"], 1)


# Invalid plans.


def test_an_algorithm_with_range_counts_cannot_be_planned():
    with pytest.raises(Refused, match="does not support this"):
        make_plan(make_costs(4, round_trip_s=0.0), 4, candidates={"hufu": hufu})


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"k": 0}, "k from 1 to the measured 4, got 0"),
        ({"k": 5}, "got 5; measure with a larger k"),
        ({"candidates": {}}, "at least one algorithm"),
        ({"n_parallel": 0}, "n_parallel of 1 or more, got 0"),
    ],
)
def test_invalid_arguments_of_a_plan_are_refused(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        make_plan(make_costs(4, round_trip_s=0.0), **{"k": 4} | arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"queries": []}, "at least one sample query"),
        ({"k": 0}, "k of 1 or more, got 0"),
        ({"limit_s": 0}, "limit_s above 0, up to 600.0, got 0"),
    ],
)
def test_invalid_arguments_of_a_measurement_are_refused(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        measure(Recording([]), **{"queries": [b"0.0"], "k": 4} | arguments)


@pytest.mark.parametrize(
    "change",
    [
        {"ids": ("a",)},
        {"steps": np.array([2, 1, 4])},
        {"steps": np.array([1, 2, 5])},
        {"reached_s": np.array([0.2, 0.1, 0.3])},
        {"bounds_s": -1.0},
        {"first_s": float("nan")},
        {"distances": np.array([2.0, 1.0, 3.0, 4.0])},
        {"bounds": np.array([-1.0])},
    ],
)
def test_an_inconsistent_sample_is_refused(change):
    with pytest.raises(ValueError, match=r"differ|ascend|not one|seconds"):
        replace(make_sample([1.0, 2.0, 3.0, 4.0], owner=0), **change)


def test_invalid_echoes_and_samples_are_refused():
    with pytest.raises(ValueError, match="expected 0 to"):
        EchoRequest(b"", -1)
    with pytest.raises(ValueError, match="a limit of up to 600"):
        SampleRequest(b"", 1, 0.0)
    reply = make_sample([1.0, 2.0], owner=0)
    with pytest.raises(ValueError, match="expected at most 1 objects"):
        SampleRequest(b"", 1, 1.0).check("p0", reply)
