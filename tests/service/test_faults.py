"""A sample of the faults of links, machines and users.

``python -m tests.service.faults`` and ``python -m tests.service.host_faults`` run all of them.
"""

import itertools
import os

import pytest

from tests.service.faults import ALGORITHMS, HONEST, UNREACHABLE, Campaign, all_faults
from tests.service.host_faults import FAKETIME, TYPED, HostCampaign, HostFault

HOST_CASES = [
    (HostFault("full", "broker", "limit"), "dann*"),
    (HostFault("full", "north", "limit"), "eager"),
    (HostFault("clock", "broker", "a day later"), "dann*"),
    (HostFault("client", "client", "killed"), "dann*"),
    (HostFault("client", "client", "at once"), "dann*"),
]
CASES = list(itertools.product(ALGORITHMS, all_faults(3)))


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    campaign = Campaign(tmp_path_factory.mktemp("broker"))
    yield campaign
    campaign.close()


@pytest.mark.parametrize(("algorithm", "fault"), CASES[::11], ids=str)
def test_a_faulty_link_causes_no_wrong_answer(campaign, algorithm, fault):
    outcome, *_ = campaign.run(fault, algorithm)

    assert outcome in {"exact", UNREACHABLE, *HONEST}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    campaign = HostCampaign(tmp_path_factory.mktemp("hosts"), has_disks=False)
    yield campaign
    campaign.close()


@pytest.mark.e2e
@pytest.mark.parametrize(("fault", "algorithm"), HOST_CASES, ids=str)
def test_a_fault_of_a_host_causes_no_wrong_answer(hosts, fault, algorithm):
    if fault.kind == "clock" and not FAKETIME and "CI" not in os.environ:
        pytest.skip("needs libfaketime, which install-servers.sh installs")

    outcomes, _, _ = hosts.run(fault, algorithm)

    assert set(outcomes) <= TYPED | {"exact"}
    assert ("log-failed" in outcomes) == (fault.kind == "full")
