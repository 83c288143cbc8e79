"""A client with a budget: charges, repeats and refusals, independent of single rows."""

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedneighbors.errors import PartyRefused
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.knnper.private.protocol import (
    BeginRequest,
    NoisedCountsRequest,
    PrivateTrainRequest,
    PublicClientSchemaRequest,
)
from fedneighbors.methods.knnper.protocol import ClientSchemaRequest, TrainRequest
from fedneighbors.neural._dp_sgd import ORDERS, new_accountant
from fedneighbors.neural._network import Network
from fedneighbors.neural._schedule import Regime
from fedneighbors.privacy._accounting import fits
from fedneighbors.privacy._guarantees import ApproxDP
from fedneighbors.privacy._policy import Privacy, terms
from tests.methods.knnper.private.clients import (
    PRIVACY,
    make_client,
    make_clients,
    make_rows,
    open_ledger,
    train,
)

EMPTY = np.empty(0)
COUNTS = NoisedCountsRequest("a", terms(PRIVACY), (0, 1, 2), EMPTY, EMPTY)
BEGIN = BeginRequest("a", terms(PRIVACY), (0, 1), 1, 10, 1.0)
STEPS = Regime(learning_rate=0.1, momentum=0.9, weight_decay=0.0)


def make_round_request(party, number=0, *, shift=0.0, run_name="a"):
    weights = party.network.initial + np.float32(shift)
    return PrivateTrainRequest(run_name, number, STEPS, 40, weights)


def begin(party):
    party.answer(COUNTS)
    party.answer(BEGIN)
    return party


def list_kinds(ledger):
    return [entry.kind for entry in ledger.entries()]


def test_all_steps_are_charged_before_the_first():
    ledger = open_ledger("north")
    party = begin(make_client(ledger=ledger))
    spent = party.spent

    for number in (0, 1):
        party.answer(make_round_request(party, number))

    assert party.spent == spent
    assert fits([spent], PRIVACY.total)
    assert 0.9 * 2 < float(spent.epsilon) <= 2
    assert [str(e.guarantee) for e in ledger.entries() if e.kind == "released"][-2:] == [
        "epsilon=0"
    ] * 2


class Centered(nn.Module):
    """Network that subtracts the mean of the batch."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.body(x)
        return self.head(hidden - hidden.mean(dim=0))


def test_network_that_mixes_rows_is_refused_without_a_charge():
    party = make_client(net=Network(Centered(), embedding="body"))
    party.answer(COUNTS)
    spent = party.spent

    with pytest.raises(Refused, match="its network cannot be trained with noise"):
        party.answer(BEGIN)

    assert party.spent == spent


def test_the_optimizers_steps_are_those_charged():
    party = begin(make_client())

    for number in (0, 1):
        party.answer(make_round_request(party, number))

    accountant = new_accountant()
    accountant.history = [
        (party.plan.noise_multiplier, party.plan.sample_rate, party.plan.n_steps * 2)
    ]
    epsilon = party.accountant.get_epsilon(1e-5, alphas=ORDERS)
    assert party.accountant.history == [(*accountant.history[0][:2], party.plan.n_steps)] * 2
    assert epsilon == pytest.approx(accountant.get_epsilon(1e-5, alphas=ORDERS), rel=1e-9)
    assert epsilon <= float(party.plan.cost.epsilon)


@pytest.mark.parametrize("share", ["1/2", "99/100"])
def test_a_client_with_too_small_a_budget_refuses(share):
    ledger = open_ledger("north", ApproxDP(2 * float(parse_fraction(share)), "1e-5"))
    party = make_client(ledger=ledger)

    with pytest.raises(Refused, match="its privacy budget does not allow this training"):
        party.answer(COUNTS)
    with pytest.raises(Refused, match="the class counts must come first"):
        party.answer(BEGIN)

    assert list_kinds(ledger) == ["budget"]


def parse_fraction(text):
    numerator, denominator = text.split("/")
    return int(numerator) / int(denominator)


def test_a_second_training_on_a_spent_budget_is_refused():
    members = make_clients(2)
    train(members, run_name="a")
    before = [member.spent for member in members]

    with pytest.raises(PartyRefused, match="'c0' refused: its privacy budget"):
        train(members, run_name="b")

    assert [member.spent for member in members] == before


def test_a_repeated_round_gets_the_same_noise():
    party = begin(make_client())
    request = make_round_request(party)

    first, second = party.answer(request), party.answer(request)

    assert (first.change == second.change).all()
    assert party.accountant.history == [
        (party.plan.noise_multiplier, party.plan.sample_rate, party.plan.n_steps)
    ]


def test_a_round_of_the_same_number_but_other_weights_is_refused():
    party = begin(make_client())
    party.answer(make_round_request(party))

    with pytest.raises(Refused, match="was answered before; a new training must be charged again"):
        party.answer(make_round_request(party, shift=0.1))


def test_a_client_without_stored_replies_refuses_repeats():
    party = begin(make_client(store_weights=False))
    party.answer(make_round_request(party))

    with pytest.raises(Refused, match="was answered before"):
        party.answer(make_round_request(party))


def test_budget_and_answers_survive_a_restart(tmp_path):
    path = tmp_path / "ledger"
    with open_ledger("north", path=path) as ledger:
        before = begin(make_client(ledger=ledger))
        change = before.answer(make_round_request(before)).change
        spent, held_out = before.spent, before.held_out
    with open_ledger("north", path=path) as ledger:
        after = begin(make_client(ledger=ledger))
        repeated = after.answer(make_round_request(after)).change
        after.answer(make_round_request(after, 1))

        assert (change == repeated).all()
        assert (held_out == after.held_out).all()
        assert after.spent == spent
        assert after.accountant.history == [
            (after.plan.noise_multiplier, after.plan.sample_rate, after.plan.n_steps)
        ]


KILLED = """
    import os, signal, sys
    from fedneighbors.methods.knnper.private import _party as home
    from tests.methods.knnper.private.clients import make_client, open_ledger
    from tests.methods.knnper.private.test_party import begin, make_round_request

    party = begin(make_client(ledger=open_ledger("north", path=sys.argv[1])))
    party.answer(make_round_request(party, 0))
    home.train_private = lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL)
    party.answer(make_round_request(party, 1))
"""


def test_a_killed_client_resumes_its_round_at_no_cost(tmp_path):
    path = tmp_path / "ledger"

    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )

    assert process.returncode == -signal.SIGKILL
    with open_ledger("north", path=path) as ledger:
        entry_kinds = list_kinds(ledger)
        party = begin(make_client(ledger=ledger))
        spent = party.spent
        party.answer(make_round_request(party, 1))
        assert entry_kinds.count("released") == 3  # counts, steps, the first round
        assert entry_kinds[-2:] == ["reserved", "budget"]
        assert party.spent == spent


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (replace(BEGIN, privacy={}), "privacy terms differ from the agreed ones"),
        (replace(COUNTS, privacy={}), "privacy terms differ from the agreed ones"),
        (replace(COUNTS, classes=(0, 1)), "a declared class is missing"),
        (PublicClientSchemaRequest("other"), "the network differs from"),
        (ClientSchemaRequest("x"), "unknown request"),
    ],
)
def test_other_requests_than_those_agreed_are_refused(request_, words):
    party = begin(make_client())
    spent = party.spent

    with pytest.raises(Refused, match=words):
        party.answer(request_)

    assert party.spent == spent


def test_private_labels_are_not_revealed():
    party = make_client()

    assert party.answer(PublicClientSchemaRequest(party.network.digest)).labels == ()


@pytest.mark.parametrize(("number", "run_name"), [(2, "a"), (0, "b")])
def test_rounds_that_were_not_announced_are_refused(number, run_name):
    party = begin(make_client())

    with pytest.raises(Refused, match="announced"):
        party.answer(make_round_request(party, number, run_name=run_name))


def test_only_the_release_is_accepted_unnoised():
    party = make_client()

    assert TrainRequest not in party.accepts
    assert ClientSchemaRequest not in party.accepts


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_no_value_of_a_row_makes_a_training_fail(value):
    x, y = make_rows()
    x[7] = value
    members = [make_client("c0", table=(x, y)), make_client("c1")]

    shared = train(members).result

    assert np.isfinite(shared.weights).all()
    assert all(member.client_state is not None for member in members)


class Steep(nn.Module):
    """Network whose embeddings are not finite for distant rows."""

    def __init__(self):
        super().__init__()
        self.body, self.head = Exponential(), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


class Exponential(nn.Module):
    def forward(self, x):
        return torch.exp(x)


def test_a_broken_memory_does_not_change_the_reply(caplog):
    x, y = make_rows()
    x[7] = 1e6
    net = Network(Steep(), embedding="body")
    members = [make_client("c0", table=(x, y), net=net), make_client("c1", net=net)]

    train(members)

    assert members[0].client_state is None
    assert members[1].client_state is not None
    assert caplog.messages == ["no memory was built: Refused"]


def test_a_row_with_another_label_is_dropped():
    x, y = make_rows()
    y = np.where(np.arange(40) < 10, 9, y)

    party = make_client(table=(x, y))

    assert party.n_rows == 30


@pytest.mark.parametrize("n", [0, 1])
def test_clients_of_at_most_one_row_reply_as_others_do(n):
    members = [make_client("c0", table=make_rows(n)), make_client("c1")]

    outcome = train(members)

    assert outcome.result.weights.dtype == np.float32
    assert all(record.upload_bytes["c0"] == record.upload_bytes["c1"] for record in outcome.rounds)
    assert len(members[0].client_state.memory) == n


def test_counts_carry_noise_of_their_part_of_the_budget():
    large_budget = Privacy(epsilon=1e6, delta=1e-5, classes=(0, 1, 2))
    plain = make_client(privacy=large_budget).answer(replace(COUNTS, privacy=terms(large_budget)))
    noised = np.array(
        [make_client(bits=np.random.default_rng(k).bytes).answer(COUNTS).counts for k in range(200)]
    )

    # epsilon 2, a tenth for the counts: scale 5, variance about 50 for each of 600 seeded draws of
    # kurtosis 6; six deviations, sqrt(5 / 600) each, have a probability below 1e-6
    assert plain.counts.tolist() == [14, 13, 13]
    assert plain.n_rows == 40
    assert noised.var() == pytest.approx(50, rel=6 * np.sqrt(5 / 600))


def test_rows_are_held_out_independently():
    masks = [begin(make_client(table=make_rows(400))).held_out for _ in range(10)]

    # 4,000 fair coins of 1/5: six deviations are .038
    assert np.mean(masks) == pytest.approx(0.2, abs=0.038)
    assert len({mask.tobytes() for mask in masks}) == 10


def test_torchs_generator_is_unchanged():
    torch.manual_seed(3)
    state = torch.random.get_rng_state()

    party = begin(make_client())
    party.answer(make_round_request(party))

    assert torch.equal(torch.random.get_rng_state(), state)
