"""A sample of the faults of links, machines, processes, users and identities.

``python -m tests.service.faults``, ``host_faults``, ``process_faults`` and ``identity_faults`` run
all of them.
"""

import itertools
import os

import pytest

from tests.service.faults import (
    ALGORITHMS,
    HONEST,
    PARTIAL,
    RECOVERY_S,
    REFUSED,
    UNREACHABLE,
    Campaign,
    Fault,
    Message,
    all_faults,
)
from tests.service.host_faults import FAKETIME, TYPED, HostFault
from tests.service.identity_faults import FalseBroker, IdentityCampaign, IdentityFault
from tests.service.process_faults import OUTCOMES, PLACES, ProcessCampaign, ProcessFault
from tests.service.process_faults import main as run_process_faults

HOST_CASES = [
    (HostFault("full", "broker", "limit"), "dann*"),
    (HostFault("full", "north", "limit"), "eager"),
    (HostFault("clock", "broker", "a day later"), "dann*"),
    (HostFault("client", "client", "killed"), "dann*"),
    (HostFault("client", "client", "at once"), "dann*"),
    (HostFault("full", "broker", "limit", Message("provider", "to broker", 0)), "dann*"),
    (HostFault("full", "north", "limit", Message("user", "to broker", 1)), "hufu+"),
    (HostFault("clock", "broker", "a day earlier", Message("provider", "to broker", 0)), "dann*"),
    (HostFault("clock", "north", "a day later", Message("provider", "to provider", 0)), "hufu+"),
    (HostFault("clock", "client", "a day earlier", Message("user", "to broker", 0)), "dann*"),
]
IDENTITY_CASES = [
    ("provider", "new key", Message("provider", "to broker", 0), "dann*"),
    ("provider", "another provider's key", Message("provider", "to provider", 0), "hufu+"),
    ("provider", "earlier hello", Message("provider", "to broker", 0), "eager"),
    ("provider", "new key, link kept", Message("provider", "to provider", 0), "dann*"),
    ("broker", "another certificate", Message("user", "to broker", 1), "baseline"),
    ("client", "unknown token", Message("user", "to provider", 1), "dann*"),
    ("client", "another user", Message("user", "to provider", 1), "dann*"),
]
PROCESS_CASES = [
    (ProcessFault("kill", "provider", Message("provider", "to provider", 0)), "dann*"),
    (ProcessFault("stop", "provider", Message("provider", "to provider", 0)), "dann, partial"),
    (ProcessFault("pause", "provider", Message("provider", "to broker", 0)), "hufu+"),
    (ProcessFault("kill", "broker", Message("provider", "to broker", 0)), "dann*"),
    (ProcessFault("stop", "broker", Message("provider", "to provider", 0)), "eager"),
    (ProcessFault("stop", "broker", Message("user", "to broker", 0)), "baseline"),
    (ProcessFault("kill", "client", Message("user", "to broker", 1)), "dann*"),
    (ProcessFault("stop", "client", Message("user", "to provider", 1)), "dann*"),
]
CASES = list(itertools.product((*ALGORITHMS, PARTIAL), all_faults(3)))


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    campaign = Campaign(tmp_path_factory.mktemp("broker"))
    yield campaign
    campaign.close()


@pytest.mark.parametrize(("algorithm", "fault"), CASES[::11], ids=str)
def test_a_faulty_link_causes_no_wrong_answer(campaign, algorithm, fault):
    case = campaign.run(fault, algorithm)

    allowed = REFUSED if fault.kind == "query" else set()
    assert case.outcome in {"exact", "partial", UNREACHABLE, *HONEST, *allowed}


def test_a_provider_that_meets_another_server_connects_again(campaign, tmp_path):
    relay, deployment = campaign.relay, campaign.deployment
    impostor = deployment.run(FalseBroker.start(tmp_path))
    deployment.wait("north")

    broker_port, relay.port = relay.port, impostor.port
    relay.arm(Fault("bytes", "cut", "to broker", 0))  # the next heartbeat
    deployment.run(impostor.met.wait())
    relay.port = broker_port

    deployment.wait("north")
    assert impostor.seen == b""
    assert not deployment.tasks["north"].done()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    campaign = IdentityCampaign(tmp_path_factory.mktemp("hosts"))
    yield campaign
    campaign.close()


@pytest.mark.e2e
@pytest.mark.parametrize(("fault", "algorithm"), HOST_CASES, ids=str)
def test_a_fault_of_a_host_causes_no_wrong_answer(hosts, fault, algorithm):
    if fault.kind == "clock" and not FAKETIME and "CI" not in os.environ:
        pytest.skip("needs libfaketime, which install-servers.sh installs")

    case = hosts.run(fault, algorithm)

    assert set(case.outcomes) <= TYPED | {"exact"}
    assert ("log-failed" in case.outcomes) == (fault.kind == "full")
    assert case.is_hit


@pytest.mark.e2e
@pytest.mark.parametrize(("target", "kind", "message", "algorithm"), IDENTITY_CASES, ids=str)
def test_a_wrong_identity_causes_no_wrong_answer(hosts, target, kind, message, algorithm):
    case = hosts.run(IdentityFault(kind, target, message), algorithm)

    assert case.is_hit
    assert case.outcomes == (["exact"] if target != "broker" else [UNREACHABLE] * 2)


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    campaign = ProcessCampaign(tmp_path_factory.mktemp("processes"))
    yield campaign
    campaign.close()


@pytest.mark.e2e
@pytest.mark.parametrize(("fault", "algorithm"), PROCESS_CASES, ids=str)
def test_a_killed_or_stopped_process_causes_no_wrong_answer(processes, fault, algorithm):
    case = processes.run(fault, algorithm)

    assert case.is_hit
    assert case.outcome in OUTCOMES
    if fault.target == "broker":
        assert case.outcome == UNREACHABLE


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("target", PLACES)
def test_no_process_that_is_hit_at_a_message_causes_a_wrong_answer(target):
    found = run_process_faults((target,))

    assert found["failed"] == []
    assert found["longest recovery (s)"] < RECOVERY_S
