"""Measurements in several processes are returned in order; a result waits only for earlier ones."""

import os
import time

import pytest
from joblib.externals.loky import get_reusable_executor

from experiments.harness import run_each, run_with_followups


def product(a, b):
    return a * b


def paused(seconds, _):
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic(), os.getpid()


def refused(a, b):
    if b == 3:
        raise KeyError(f"no {b}")
    return a * b


def threads(*_):
    return os.environ.get("OMP_NUM_THREADS")


def two_more(job, found):
    return [(found, 10), (found, 100)] if job[0] > 1 else []


def label(a, b):
    return f"{a} by {b}"


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_jobs_and_their_sequels_come_back_in_order(n_jobs):
    told = []
    found = run_with_followups(
        product,
        [(2, 3), (1, 5), (4, 5)],
        followups=two_more,
        n_jobs=n_jobs,
        progress=lambda *each: told.append(each),
        label=label,
    )
    assert found == [[6, 60, 600], [5], [20, 200, 2000]]
    assert [done for done, _, _ in told] == list(range(1, 8))
    assert all(done <= known for done, known, _ in told)
    assert told[-1][:2] == (7, 7)
    assert sorted(message for _, _, message in told) == sorted(
        ["2 by 3", "1 by 5", "4 by 5", "6 by 10", "6 by 100", "20 by 10", "20 by 100"]
    )


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_no_jobs_give_no_results(n_jobs):
    found = run_with_followups(
        product, [], followups=two_more, n_jobs=n_jobs, progress=print, label=label
    )
    assert found == []


def test_a_sequel_begins_while_another_first_job_is_not_through():
    chains = run_with_followups(
        paused,
        [(3.0, 0), (0.0, 0)],
        followups=lambda job, _: [(0.0, 0)] if job[0] == 0 else [],
        n_jobs=2,
        progress=lambda *_: None,
        label=label,
    )
    [[long], [_, sequel]] = chains
    assert sequel[0] < long[1]
    assert sequel[2] != long[2]


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("first", [(1, 3), (2, 1)])
def test_a_failure_is_reported(n_jobs, first):
    with pytest.raises(KeyError, match="no 3"):
        run_with_followups(
            refused,
            [first, (1, 1)],
            followups=lambda job, _: [(5, 3)] if job[0] == 2 else [],
            n_jobs=n_jobs,
            progress=lambda *_: None,
            label=label,
        )


def endless_or_refused(path, endless):
    if not endless:
        while not path.exists():  # until the other one is at work
            time.sleep(0.01)
        raise KeyError("no")
    path.write_text(str(os.getpid()))
    time.sleep(600)


def test_a_failed_job_stops_the_others(tmp_path):
    path = tmp_path / "pid"
    with pytest.raises(KeyError, match="no"):
        run_with_followups(
            endless_or_refused,
            [(path, True), (path, False)],
            followups=lambda *_: [],
            n_jobs=2,
            progress=lambda *_: None,
            label=label,
        )
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)


def test_processes_share_the_cores(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    [[found]] = run_with_followups(
        threads, [(1, 1)], followups=lambda *_: [], n_jobs=2, progress=lambda *_: None, label=label
    )
    assert found == "7"
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("experiments.harness.cpu_count", lambda: 6)
    [[found]] = run_with_followups(
        threads, [(1, 1)], followups=lambda *_: [], n_jobs=2, progress=lambda *_: None, label=label
    )
    assert found == "3"


@pytest.fixture
def no_idle_processes():
    """End the processes that joblib reuses, because other tests count processes."""
    yield
    get_reusable_executor().shutdown()


@pytest.mark.usefixtures("no_idle_processes")
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_independent_jobs_come_back_in_order(n_jobs):
    told = []
    found = run_each(
        product,
        [(1, 2), (3, 4)],
        n_jobs=n_jobs,
        progress=lambda *each: told.append(each),
        label=label,
    )
    assert found == [2, 12]
    assert told == [(1, 2, "1 by 2"), (2, 2, "3 by 4")]
