"""A sample of the faults of links; ``python -m tests.service.faults`` runs all of them."""

import itertools

import pytest

from tests.service.faults import ALGORITHMS, HONEST, Campaign, all_faults

CASES = list(itertools.product(ALGORITHMS, all_faults(3)))


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    campaign = Campaign(tmp_path_factory.mktemp("broker"))
    yield campaign
    campaign.close()


@pytest.mark.parametrize(("algorithm", "fault"), CASES[::11], ids=str)
def test_a_faulty_link_causes_no_wrong_answer(campaign, algorithm, fault):
    outcome, _, _ = campaign.run(fault, algorithm)

    assert outcome in {"exact", *HONEST}
