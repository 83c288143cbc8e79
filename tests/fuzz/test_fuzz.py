"""Mutated files and requests raise one type of error each, and need little time and memory.

Each input may take 5 s of CPU time and 256 MB, in a process whose memory is limited. Requests to
the REST API that are generated from its description get answers that conform to it, or problems.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fuzz.campaign import WEIGHTS
from tests.fuzz.rest import RestCampaign, broker

N_PARTS = 16
N_INPUTS = 1_000_000


def run_part(seed, inputs, *options):
    """Run one part of a campaign in its own process; return its counts and faults."""
    command = [sys.executable, "-m", "tests.fuzz.campaign"]
    command += ["--seed", str(seed), "--inputs", str(inputs), *options]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
    return json.loads(process.stdout)


def test_few_mutated_inputs_have_no_fault():
    found = run_part(0, 3000, "--brief")

    assert found["faults"] == []
    assert found["inputs"].keys() == found["refused"].keys() == WEIGHTS.keys()
    assert sum(found["inputs"].values()) == 3000


@pytest.mark.filterwarnings("ignore")  # the broker, in another thread, draws random numbers
def test_few_generated_requests_have_no_fault(tmp_path):
    with broker(tmp_path) as deployment:
        campaign = RestCampaign(deployment, 0)
        campaign.run(200, 0)

    assert campaign.faults == {}
    assert {200, 401, 404, 422} <= campaign.statuses.keys()
    assert campaign.statuses.total() >= 150


@pytest.mark.slow
@pytest.mark.parametrize("target", ["decoder", "replies", "requests"])
def test_inputs_guided_by_coverage_have_no_fault(target):
    command = [sys.executable, "-m", "tests.fuzz.guided", target, "--inputs", "20000"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)

    assert json.loads(process.stdout)["faults"] == {}
    assert json.loads(process.stdout)["inputs"] == 20_000


@pytest.mark.slow
def test_a_million_mutated_inputs_have_no_fault():
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = list(pool.map(lambda seed: run_part(seed, N_INPUTS // N_PARTS), range(N_PARTS)))

    inputs = sum((Counter(part["inputs"]) for part in parts), Counter())
    assert [fault for part in parts for fault in part["faults"]] == []
    assert inputs.total() == N_INPUTS
    assert inputs.keys() == WEIGHTS.keys()
