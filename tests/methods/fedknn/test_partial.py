"""Missing providers: an error, or a partial answer that reports them."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import PartyMissing
from fedneighbors.federation._loop import Replies
from fedneighbors.methods.fedknn._eager import Pace, eager
from fedneighbors.methods.fedknn._radius import hufu, hufu_plus
from fedneighbors.methods.fedknn.protocol import baseline, dann
from tests.methods.fedknn.federations import KEY, BoundedLine, Federation, federations
from tests.naive.fedknn import nearest
from tests.seeds import cases

HURRIED = partial(eager, pace=Pace(0.0))
ALGORITHMS = [baseline, dann, partial(dann, with_cutoff=False), eager, HURRIED, hufu, hufu_plus]


def run_search(coordinator, federation, *, leaves):
    """Return the answer of a search and its number of exchanges.

    Each provider in ``leaves`` is missing from the exchange of that number on.
    """
    parties = {provider.name: provider for provider in federation.providers()}
    exchange, n_exchanges = next(coordinator), 0
    while True:
        present = {
            name: party for name, party in parties.items() if leaves.get(name, 999) > n_exchanges
        }
        replies = {
            name: present[name].answer(request)
            for name, request in exchange.for_parties(tuple(parties)).items()
            if name in present
        }
        missing = {
            name: "it left" for name in exchange.for_parties(tuple(parties)) if name not in present
        }
        n_exchanges += 1
        try:
            exchange = coordinator.send(Replies(replies, None, missing))
        except StopIteration as stop:
            return stop.value, n_exchanges


def start_search(algorithm, federation, **options):
    return algorithm(repr(federation.query).encode(), federation.k, name="q", **options)


@settings(max_examples=cases(800), deadline=None)
@given(
    federations(),
    st.sampled_from(ALGORITHMS),
    st.dictionaries(st.sampled_from([f"p{i}" for i in range(6)]), st.integers(0, 7), max_size=3),
)
def test_answers_equal_those_of_the_remaining_providers(federation, algorithm, leaves):
    leaves = {name: when for name, when in leaves.items() if name in federation.tables}
    coordinator = start_search(algorithm, federation, allow_partial=True)

    try:
        answer, _ = run_search(coordinator, federation, leaves=leaves)
    except PartyMissing:
        assert set(leaves) == set(federation.tables)
        return

    remaining = {name: rows for name, rows in federation.tables.items() if name in answer.answered}
    merged = answer.merged
    neighbors = list(zip(merged.distances.tolist(), merged.owners, merged.ids, strict=True))
    assert neighbors == nearest(remaining, federation.query, federation.k, key=KEY)
    assert sorted([*answer.answered, *answer.missing]) == sorted(federation.tables)
    assert set(answer.missing) <= set(leaves)
    assert answer.exact == (not answer.missing)
    assert set(answer.n_returned) == set(answer.verified) == set(answer.answered)


TABLES = {"p0": [1.0, 2.0, 3.0, 9.0], "p1": [1.5, 2.5, 3.5, 4.5], "p2": [1.25, 2.25, 8.0]}
FEDERATION = Federation(TABLES, 0.0, 4, BoundedLine(0.5, 1))


@pytest.mark.parametrize("algorithm", [baseline, dann, eager, hufu, hufu_plus])
def test_a_missing_provider_is_named_with_the_reason(algorithm):
    coordinator = start_search(algorithm, FEDERATION, allow_partial=True)

    answer, _ = run_search(coordinator, FEDERATION, leaves={"p1": 0})

    assert answer.missing == {"p1": "it left"}
    assert answer.answered == ("p0", "p2")
    assert not answer.exact
    assert answer.merged.owners == ("p0", "p2", "p0", "p2")


@pytest.mark.parametrize(
    ("algorithm", "when"),
    [
        (baseline, 0),
        (eager, 0),
        *((other, when) for other in (dann, hufu, hufu_plus) for when in (0, 1)),
    ],
)
def test_by_default_a_missing_provider_is_an_error(algorithm, when):
    coordinator = start_search(algorithm, FEDERATION)

    with pytest.raises(PartyMissing, match=r"'p1' \(it left\)"):
        run_search(coordinator, FEDERATION, leaves={"p1": when})


@pytest.mark.parametrize("algorithm", [baseline, dann, eager, hufu, hufu_plus])
def test_an_answer_needs_at_least_one_provider(algorithm):
    coordinator = start_search(algorithm, FEDERATION, allow_partial=True)

    with pytest.raises(PartyMissing, match=r"'p0'.*'p1'.*'p2'"):
        run_search(coordinator, FEDERATION, leaves=dict.fromkeys(TABLES, 0))


def test_a_missing_party_gets_no_further_requests():
    coordinator = start_search(hufu, FEDERATION, allow_partial=True)
    recipients, replies = [], None
    providers = {provider.name: provider for provider in FEDERATION.providers()}

    while True:
        try:
            exchange = coordinator.send(replies)
        except StopIteration:
            break
        requests = exchange.for_parties(tuple(providers))
        recipients.append(set(requests))
        answers = {
            name: providers[name].answer(requests[name]) for name in requests if name != "p1"
        }
        replies = Replies(answers, None, {"p1": "it left"} if "p1" in requests else {})

    assert recipients[0] == {"p0", "p1", "p2"}
    assert all(names == {"p0", "p2"} for names in recipients[1:])


def test_others_replace_the_objects_of_a_missing_provider():
    tables = {"p0": [1.0, 1.1, 1.2, 1.3, 6.0], "p1": [5.0, 5.1, 5.2, 5.3, 5.4]}
    federation = Federation(tables, 0.0, 4, BoundedLine(1.0, 1))  # bounds as low as 0
    coordinator = start_search(dann, federation, allow_partial=True)

    answer, n_exchanges = run_search(coordinator, federation, leaves={"p0": 2})

    assert answer.merged.distances.tolist() == [5.0, 5.1, 5.2, 5.3]
    assert answer.missing == {"p0": "it left"}
    assert n_exchanges == 4  # one more, because the cutoff of the second round was too near


def test_answers_name_all_providers_and_the_trust_mode():
    answer = FEDERATION.search(dann)

    assert (answer.answered, answer.missing, answer.trust) == (("p0", "p1", "p2"), {}, "trusted")


def test_counts_of_missing_providers_are_ignored():
    federation = Federation({"p0": [4.0], "p1": [5.0], "p2": [6.0]}, 4.0, 2, BoundedLine(0.0, 1))
    coordinator = start_search(hufu_plus, federation, allow_partial=True)

    # the total count decreases from radius to radius, because providers are missing
    answer, _ = run_search(coordinator, federation, leaves={"p0": 1, "p1": 2})

    assert answer.merged.distances.tolist() == [2.0]
    assert sorted(answer.missing) == ["p0", "p1"]
