"""Attacks of a coordinator that chooses its requests to kNN-Per, FlyNN and FedKNN.

Each attack succeeds on a party without its protection, and recovers nothing from a protected one.
"""

from contextlib import suppress
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import AggregationError, BudgetExceeded, PartyRefused
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import gather, total
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refusal, Refused, serve
from fedneighbors.methods.fedknn.private._noise import CountNoise, noise_source
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn.algorithm import HashPlan, hash_with_plan
from fedneighbors.methods.flynn.private.protocol import NoisyCountReply, NoisyCountRequest
from fedneighbors.methods.flynn.protocol import CountRequest, FlyNNParty
from fedneighbors.methods.knnper._client import KNNPerParty
from fedneighbors.methods.knnper.private import _party as private_knnper
from fedneighbors.methods.knnper.private.protocol import (
    BeginRequest,
    NoisedCountsRequest,
    PrivateTrainRequest,
)
from fedneighbors.methods.knnper.protocol import CountsRequest, TrainRequest
from fedneighbors.neural._blueprint import perceptron
from fedneighbors.neural._schedule import Regime
from fedneighbors.privacy._accounting import fits
from fedneighbors.privacy._guarantees import ApproxDP, PureDP
from fedneighbors.privacy._policy import terms
from fedneighbors.privacy.ledger._ledger import Ledger
from tests.federation.masked_parties import Wire, enroll, run_masked_sum
from tests.methods.flynn.private.tables import LOCAL, ledger_of
from tests.methods.flynn.private.tables import party as private_flynn_party
from tests.methods.knnper.private.clients import PRIVACY, make_client, make_rows

EMPTY = np.empty(0)

# kNN-Per: imprint. The units of the first layer compare one projection of a row with ascending
# thresholds. Neighboring units differ in the gradients of the rows between two thresholds; if there
# is one such row, the ratio of the differences of weights and bias is this row.

NETWORK = perceptron(4, 3, hidden=(40,), seed=1)
BITS = 30
SCALE = 1e-3  # small activations change the other layers less


def craft_weights(direction, thresholds, slope=0.03):
    """Return weights whose hidden unit k is active for rows beyond threshold k."""
    state = NETWORK.state(NETWORK.initial)
    for name, tensor in state.items():
        tensor.zero_()
        values = {
            "body.1.weight": SCALE * np.tile(direction, (len(thresholds), 1)),
            "body.1.bias": -SCALE * thresholds,
            "head.weight": slope * np.eye(3, 1) * np.ones((1, len(thresholds))),
        }.get(name)
        if values is not None:
            tensor += tensor.new_tensor(values)
    return NETWORK.vector(state)


def read_rows(change):
    """Return the rows that the changes of neighboring units may consist of."""
    state = NETWORK.state(change / 2.0**BITS)
    weights, biases = (state[f"body.1.{kind}"].double().numpy() for kind in ("weight", "bias"))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.diff(weights, axis=0) / np.diff(biases)[:, None]


def count_recovered_rows(claims, x):
    """Return the number of rows of which all cells are claimed, to three decimal places."""
    distances = np.abs(claims[:, None, :] - x[None, :, :]).max(axis=2)
    return int((distances < 1e-3).any(axis=0).sum())


def make_thresholds(direction, n_requests):
    steps = np.linspace(-6, 6, 40 * n_requests) * np.linalg.norm(direction)
    return steps.reshape(n_requests, 40)


def imprint(direction, regime, n_requests=4):
    """Ask for crafted rounds without a budget; return the claimed rows."""
    yield total(CountsRequest((0, 1, 2), False, EMPTY, EMPTY))
    claims = []
    for number, thresholds in enumerate(make_thresholds(direction, n_requests)):
        weights = craft_weights(direction, thresholds)
        replies = yield total(TrainRequest(number, False, regime, 0, BITS, weights))
        claims.append(read_rows(replies.total.change))
    return np.concatenate(claims)


def imprint_private(direction, regime, n_requests=4, *, bound=1.0, slope=0.03):
    """Ask for crafted rounds within a budget; return the claimed rows."""
    yield total(NoisedCountsRequest("a", terms(PRIVACY), (0, 1, 2), EMPTY, EMPTY))
    numbers = tuple(range(n_requests))
    yield gather(BeginRequest("a", terms(PRIVACY), numbers, 1, 1000, bound))
    claims = []
    for number, thresholds in enumerate(make_thresholds(direction, n_requests)):
        weights = craft_weights(direction, thresholds, slope)
        replies = yield total(PrivateTrainRequest("a", number, regime, BITS, weights))
        claims.append(read_rows(replies.total.change))
    return np.concatenate(claims)


DIRECTION = np.array([1.0, 0.7, -0.4, 0.2])
ONE_STEP = Regime(batch_size=1000, learning_rate=1e3, momentum=0.0, weight_decay=0.0)


def test_imprint_recovers_rows_from_masked_sums_without_noise():
    tables = [make_rows(n=20, seed=seed) for seed in range(3)]
    members = [KNNPerParty(f"c{k}", *table, NETWORK) for k, table in enumerate(tables)]

    claims = run(imprint(DIRECTION, ONE_STEP), members, sums="masked").result

    assert count_recovered_rows(claims, np.concatenate([x for x, _ in tables])) >= 20


def recover_within_budget(**options):
    claims = run(imprint_private(**options), [make_client(net=NETWORK)]).result
    return count_recovered_rows(claims, make_rows()[0])


def test_imprint_recovers_rows_if_noise_is_missing(monkeypatch):
    plan_steps = private_knnper.plan_steps
    monkeypatch.setattr(
        private_knnper,
        "plan_steps",
        lambda *args, **options: replace(plan_steps(*args, **options), noise_multiplier=0.0),
    )

    regime = replace(ONE_STEP, learning_rate=30.0)  # a larger change may be taken for divergence
    assert recover_within_budget(direction=DIRECTION, regime=regime) >= 10


@settings(max_examples=10, deadline=None)
@given(
    direction=st.lists(st.floats(-1, 1), min_size=4, max_size=4).filter(any).map(np.array),
    learning_rate=st.sampled_from([1e-2, 1.0, 1e2]),
    bound=st.sampled_from([1e-6, 1.0, 1e6]),
    slope=st.sampled_from([1e-3, 0.03, 1.0]),
    n_requests=st.integers(1, 4),
)
def test_crafted_networks_recover_no_row_within_a_budget(
    direction, learning_rate, bound, slope, n_requests
):
    options = {"direction": direction, "bound": bound, "slope": slope, "n_requests": n_requests}
    regime = replace(ONE_STEP, learning_rate=learning_rate)
    recovered = 0
    with suppress(PartyRefused):  # noise may move the weights too far
        recovered = recover_within_budget(regime=regime, **options)

    assert recovered == 0


# FlyNN: thresholds. Constants that the coordinator makes up stretch one column and flatten the
# others, so that the counts tell the number of rows above a threshold. Bisection finds values.

N_COLUMNS, N_VALUES, N_HALVINGS = 3, 3, 45


def make_plan(column, threshold, n_active=1):
    """Return a plan in which a row activates a unit of the column if above the threshold."""
    mean, scale = np.zeros(N_COLUMNS), np.full(N_COLUMNS, 1e12)
    mean[column], scale[column] = threshold, 1e-12
    return HashPlan(FeatureMap(N_COLUMNS, "none", mean, scale), 16, 1, n_active, 0)


def bisect_values(ask):
    """Return the largest values of each column that the counts disclose.

    ``ask`` returns the counts for a plan, or None if the party refuses.
    """
    claims = []
    for column in range(N_COLUMNS):
        values = []
        for rank in range(1, N_VALUES + 1):
            low, high = -8.0, 8.0
            for _ in range(N_HALVINGS):
                plan = make_plan(column, (low + high) / 2)
                counts = ask(plan)
                if counts is None:
                    break
                n_above = counts[plan.wiring[:, 0] == column].sum()
                low, high = ((low + high) / 2, high) if n_above >= rank else (low, (low + high) / 2)
            values.append(high)
        claims.append(np.array(values))
    return claims


def count_recovered_cells(claims, x):
    """Return the number of claimed values that are cells of their column."""
    return sum(
        bool(np.isclose(x[:, j], value, rtol=0, atol=1e-6).any())
        for j, values in enumerate(claims)
        for value in values
    )


def ask_openly(party):
    return lambda plan: party.answer(CountRequest(plan, (0, 1), 16, {})).counts


def ask_private(party):
    """Return a function that asks a party within a budget, each time in a new run."""
    runs = iter(range(10**6))

    def ask(plan):
        request = NoisyCountRequest(str(next(runs)), terms(LOCAL), 1, plan, (0, 1), False)
        with suppress(Refused):
            return party.answer(request).counts

    return ask


def ask_masked(masked, roster):
    """Return a function that asks for masked sums."""

    def ask(plan):
        request = CountRequest(plan, (0, 1), 16, {})
        with suppress(AggregationError):
            return run_masked_sum(Wire(masked), roster, request=request)[0].total.counts

    return ask


def make_flynn_members(n=4, version=0):
    return [FlyNNParty(f"p{k}", *make_flynn_table(10 * version + k)) for k in range(n)]


def make_flynn_table(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(30, N_COLUMNS)), np.arange(30) % 2


def test_chosen_plans_recover_cells_of_an_open_party():
    x, y = make_flynn_table()

    claims = bisect_values(ask_openly(FlyNNParty("p0", x, y)))

    assert count_recovered_cells(claims, x) == N_COLUMNS * N_VALUES


def test_chosen_plans_recover_no_cell_within_a_budget():
    x, y = make_flynn_table()
    party = private_flynn_party(rows=(x, y), ledger=ledger_of("north", PureDP(1)))

    assert count_recovered_cells(bisect_values(ask_private(party)), x) == 0


def test_chosen_plans_recover_no_cell_from_masked_sums():
    members = make_flynn_members(3)
    masked, roster = enroll(members)

    claims = bisect_values(ask_masked(masked, roster))

    assert count_recovered_cells(claims, np.concatenate([party._x for party in members])) == 0


plans = st.builds(
    make_plan, st.integers(0, N_COLUMNS - 1), st.sampled_from([-1.0, 0.0, 1.0]), st.integers(1, 3)
)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(plans, st.sampled_from("ab")), max_size=8))
def test_no_sequence_of_count_requests_exceeds_a_budget(sequence):
    ledger, sent = ledger_of("north", PureDP(3)), {}
    with ledger:
        for plan, run_name in sequence:
            party = private_flynn_party(ledger=ledger)  # a node begins again for each message
            request = NoisyCountRequest(run_name, terms(LOCAL), 1, plan, (0, 1), False)
            known, spent = sent.get(encode(request)), ledger.spent("table").epsilon
            answer = decode(serve(party, encode(request)), (NoisyCountReply, Refusal))
            if known is None and spent == 3:
                assert answer == Refusal("its privacy budget does not allow this release", "")
            else:
                assert answer == sent.setdefault(encode(request), answer)
            assert ledger.spent("table").epsilon == min(3, spent + (known is None))


sums = st.tuples(plans, st.booleans(), st.sets(st.integers(0, 3), max_size=1))


def learn_sums(sequence):
    """Return the different sums that a coordinator gets for a sequence of requests.

    Each request has a plan, a version of the tables, and parties that it leaves out.
    """
    versions = [make_flynn_members(version=version) for version in (0, 1)]
    masked, roster = enroll(versions[0])
    learned = set()
    for plan, version, left_out in sequence:
        for k, party in enumerate(masked):
            party._party = versions[version][k]
        names = [f"p{k}" for k in range(4) if k not in left_out]
        request = CountRequest(plan, (0, 1), 16, {})
        try:
            replies, _ = run_masked_sum(Wire(masked), roster, request=request, names=names)
        except AggregationError:
            continue
        learned.add(replies.total.counts.tobytes())
    return learned


@settings(max_examples=8, deadline=None)
@given(st.lists(sums, min_size=2, max_size=4))
def test_no_sequence_of_masked_sums_gives_two_of_counts(sequence):
    assert len(learn_sums(sequence)) <= 1


def test_sequences_of_masked_sums_differ_without_the_policy(monkeypatch):
    monkeypatch.delattr(CountRequest, "single_use")

    assert len(learn_sums([(make_plan(0, 0.0), 0, ()), (make_plan(1, 0.0), 0, ())])) == 2


# FlyNN: inversion. One plan with many units, half of them active, asks of each row as many
# comparisons. A search finds rows whose hashes add up to the counts of a small class.

N_SMALL = 5
WIDE = HashPlan(
    FeatureMap(N_COLUMNS, "fourier", np.zeros(N_COLUMNS), np.ones(N_COLUMNS)), 700, 1, 350, 0
)


def hash_densely(rows):
    dense = np.zeros((len(rows), WIDE.n_units))
    np.put_along_axis(dense, hash_with_plan(rows, WIDE).astype(np.int64), 1.0, axis=1)
    return dense


def invert_counts(counts, n_rows, rng, n_steps=80):
    """Return rows whose summed hashes are near the counts, by random search."""
    rows, step = rng.normal(size=(n_rows, N_COLUMNS)), 1.0
    hashes = hash_densely(rows)
    for number in range(n_steps):
        for i in range(n_rows):
            candidates = rows[i] + step * rng.normal(size=(24, N_COLUMNS))
            candidates = np.vstack([rows[i], candidates, rng.normal(size=(24, N_COLUMNS))])
            tried = hash_densely(candidates)
            others = hashes.sum(axis=0) - hashes[i]
            best = ((counts - others - tried) ** 2).sum(axis=1).argmin()
            rows[i], hashes[i] = candidates[best], tried[best]
        step *= 0.95 if number > n_steps // 8 else 1.0
    return rows


def count_near_rows(claims, x):
    """Return the number of rows of which all cells are claimed, to a tenth of a deviation."""
    return int((np.abs(claims[:, None] - x[None]).max(axis=2) < 0.1).any(axis=0).sum())


def make_small_class():
    """Return the tables of three parties; the second class has five rows in all of them."""
    x = np.random.default_rng(3).normal(size=(60, N_COLUMNS))
    y = (np.arange(60) < N_SMALL).astype(np.int64)
    return [(x[k::3], y[k::3]) for k in range(3)], x[:N_SMALL]


def test_one_masked_sum_reveals_the_rows_of_a_small_class():
    tables, small = make_small_class()
    masked, roster = enroll([FlyNNParty(f"p{k}", *table) for k, table in enumerate(tables)])

    counts = ask_masked(masked, roster)(WIDE)
    claims = invert_counts(counts[:, 1], N_SMALL, np.random.default_rng(0))

    assert count_near_rows(claims, small) == N_SMALL


def test_counts_within_a_budget_reveal_no_row_of_a_small_class():
    tables, small = make_small_class()
    replies = [ask_private(private_flynn_party(rows=table))(WIDE) for table in tables]

    claims = invert_counts(sum(replies)[:, 1], N_SMALL, np.random.default_rng(0))

    assert count_near_rows(claims, small) == 0


# FedKNN: a provider sees noisy counts of its objects among the nearest. Its attack is to average
# the noise of repeated searches.

NOISE = CountNoise("1/2", "1e-6", n_providers=2, k=3)
PROVIDERS = ("p0", "p1")
searches = st.tuples(st.sampled_from([b"q", b"r"]), st.sampled_from([b"first", b"second"]))


@settings(max_examples=20, deadline=None)
@given(sequence=st.lists(searches, max_size=10))
def test_repeated_searches_get_no_new_noise(tmp_path_factory, sequence):
    path, drawn = tmp_path_factory.mktemp("ledger") / "broker", {}
    with Ledger(path, party="broker") as ledger:
        for provider in PROVIDERS:
            ledger.set_budget(provider, ApproxDP("1.5", "1e-5"))
    for query, epoch in sequence:
        with Ledger(path, party="broker") as ledger:  # a broker that restarts each time
            noise_of = noise_source(ledger, NOISE, query=query)
            try:
                noise = noise_of(epoch, PROVIDERS)
            except BudgetExceeded:
                continue
            finally:
                spent = [ledger.spent(provider) for provider in PROVIDERS]
        assert drawn.setdefault((query, epoch), noise) == noise
        assert all(fits([cost], ApproxDP("1.5", "1e-5")) for cost in spent)
        assert spent[0].epsilon == len(drawn) * NOISE.cost.epsilon
