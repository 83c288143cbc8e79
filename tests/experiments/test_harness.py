"""Jobs in several processes return results in order; a follow-up waits only for its own job."""

import os
import time

import pytest
from joblib.externals.loky import get_reusable_executor

from experiments.harness import Study, run_each, run_with_followups


def multiply(a, b):
    return a * b


def sleep(seconds, _):
    start = time.monotonic()
    time.sleep(seconds)
    return start, time.monotonic(), os.getpid()


def fail_for_three(a, b):
    if b == 3:
        raise KeyError(f"no {b}")
    return a * b


def read_thread_variable(*_):
    return os.environ.get("OMP_NUM_THREADS")


def add_two_jobs(job, results):
    return [(results, 10), (results, 100)] if job[0] > 1 else []


def label(a, b):
    return f"{a} by {b}"


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_results_of_jobs_and_followups_are_in_order(n_jobs):
    updates = []
    results = run_with_followups(
        multiply,
        [(2, 3), (1, 5), (4, 5)],
        followups=add_two_jobs,
        n_jobs=n_jobs,
        progress=lambda *update: updates.append(update),
        label=label,
    )
    assert results == [[6, 60, 600], [5], [20, 200, 2000]]
    assert [done for done, _, _ in updates] == list(range(1, 8))
    assert all(done <= known for done, known, _ in updates)
    assert updates[-1][:2] == (7, 7)
    assert sorted(message for _, _, message in updates) == sorted(
        ["2 by 3", "1 by 5", "4 by 5", "6 by 10", "6 by 100", "20 by 10", "20 by 100"]
    )


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_no_jobs_give_no_results(n_jobs):
    results = run_with_followups(
        multiply, [], followups=add_two_jobs, n_jobs=n_jobs, progress=print, label=label
    )
    assert results == []


def test_a_followup_starts_before_other_jobs_finish():
    chains = run_with_followups(
        sleep,
        [(3.0, 0), (0.0, 0)],
        followups=lambda job, _: [(0.0, 0)] if job[0] == 0 else [],
        n_jobs=2,
        progress=lambda *_: None,
        label=label,
    )
    [[long_job], [_, followup]] = chains
    assert followup[0] < long_job[1]
    assert followup[2] != long_job[2]


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("job", [(1, 3), (2, 1)])
def test_a_failure_is_reported(n_jobs, job):
    with pytest.raises(KeyError, match="no 3"):
        run_with_followups(
            fail_for_three,
            [job, (1, 1)],
            followups=lambda job, _: [(5, 3)] if job[0] == 2 else [],
            n_jobs=n_jobs,
            progress=lambda *_: None,
            label=label,
        )


def wait_or_fail(path, waits):
    if not waits:
        while not path.exists():  # until the other job has started
            time.sleep(0.01)
        raise KeyError("no")
    path.write_text(str(os.getpid()))
    time.sleep(600)


def test_a_failed_job_stops_the_others(tmp_path):
    path = tmp_path / "pid"
    with pytest.raises(KeyError, match="no"):
        run_with_followups(
            wait_or_fail,
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
    [[results]] = run_with_followups(
        read_thread_variable,
        [(1, 1)],
        followups=lambda *_: [],
        n_jobs=2,
        progress=lambda *_: None,
        label=label,
    )
    assert results == "7"
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("experiments.harness.cpu_count", lambda: 6)
    [[results]] = run_with_followups(
        read_thread_variable,
        [(1, 1)],
        followups=lambda *_: [],
        n_jobs=2,
        progress=lambda *_: None,
        label=label,
    )
    assert results == "3"


@pytest.fixture
def end_idle_processes():
    """End the processes that joblib reuses, because other tests count processes."""
    yield
    get_reusable_executor().shutdown()


@pytest.mark.usefixtures("end_idle_processes")
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_results_of_independent_jobs_are_in_order(n_jobs):
    updates = []
    results = run_each(
        multiply,
        [(1, 2), (3, 4)],
        n_jobs=n_jobs,
        progress=lambda *update: updates.append(update),
        label=label,
    )
    assert results == [2, 12]
    assert updates == [(1, 2, "1 by 2"), (2, 2, "3 by 4")]


def test_a_study_refuses_options_that_it_lacks():
    study = Study("a.b", "A", "B.", work=None, options=("n_seeds",))

    with pytest.raises(ValueError, match=r"'a\.b' does not support data, model; run it without"):
        study.run(n_seeds=2, model="cnn", data="mnist")
