"""Averages, rounding, coded rows, models and policies of voters, without a broker."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import skops.io
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from fedneighbors.datasets import NumericColumn, Schema
from fedneighbors.errors import DataError, FederationError, ProtocolError, WireError
from fedneighbors.federation._loop import Replies
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refused
from fedneighbors.service._access_log import AccessLog
from fedneighbors.service._config import BrokerConfig, OfferSection, PolicySection
from fedneighbors.service._policy import NOT_ALLOWED, QUOTA_SPENT, PolicyParty
from fedneighbors.service._voter import MODEL_FAILED, Voter
from fedneighbors.service._votes import (
    MAX_ROWS,
    VoteReply,
    VoteRequest,
    VoteRows,
    are_probabilities,
    average_votes,
    collect_votes,
    decode_rows,
    encode_rows,
    round_votes,
)
from tests.naive import votes as naive
from tests.seeds import cases
from tests.service.voters import (
    CLASSES,
    ROWS,
    SCHEMA,
    SECTION,
    Odd,
    fit_models,
    make_section,
    make_table,
    read,
    write_models,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("voters")
    write_models(folder, fit_models())
    return folder


def as_voter(model, schema=SCHEMA):
    """Return a voter with a score."""
    voter = Voter("north", model, schema)
    voter.score, voter.n_held_out = 0.5, 10
    return voter


def ask(party, rows=ROWS, *, user="alice", schema=SCHEMA, name="q"):
    """Return the reply of a party to rows."""
    party.user, party.query = user, name
    return party.answer(VoteRequest(name, encode_rows(rows, schema), len(rows)))


probabilities = st.floats(0, 1) | st.sampled_from([0.0, 1.0, 5e-324, 1 / 3, 1 - 2**-53])
tables = st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4)).flatmap(
    lambda shape: st.lists(probabilities, min_size=math.prod(shape), max_size=math.prod(shape)).map(
        lambda cells: np.array(cells).reshape(shape)
    )
)
weights = st.lists(probabilities, min_size=5, max_size=5)
orders = st.permutations(range(5))


@settings(max_examples=cases(300), deadline=None)
@given(tables, weights, orders)
def test_the_average_is_the_exact_mean_rounded_once(table, weights, order):
    votes, weights = list(table), weights[: len(table)]
    if not any(weights):
        with pytest.raises(FederationError, match="no voter has a score above 0"):
            average_votes(votes, weights)
        return
    found = average_votes(votes, weights)
    order = [k for k in order if k < len(votes)]

    assert_array_equal(found, naive.average(votes, weights))
    assert_array_equal(found, average_votes([votes[k] for k in order], [weights[k] for k in order]))


@settings(max_examples=cases(100), deadline=None)
@given(tables, st.floats(0, 1, exclude_min=True))
def test_a_voter_alone_or_equal_voters_are_not_changed(table, weight):
    assert_array_equal(average_votes([table[0]], [weight]), table[0])
    assert_array_equal(average_votes([table[0]] * 3, [weight, 1.0, 0.0]), table[0])


rows_of_votes = st.lists(st.integers(0, 1000), min_size=1, max_size=6).filter(any)


@settings(max_examples=cases(300), deadline=None)
@given(rows_of_votes, st.sampled_from([1, 2, 3, 7, 10, 20, 1000]))
def test_rounded_probabilities_are_multiples_that_sum_to_one(counts, n_parts):
    row = np.array([counts]) / sum(counts)
    (found,) = round_votes(row, 1 / n_parts)

    units = found * n_parts
    assert_array_equal(units, np.round(units))
    assert units.sum() == n_parts
    assert (abs(found - row[0]) < 1 / n_parts + 1e-12).all()
    if n_parts == 1:  # the label
        assert found.argmax() == row[0].argmax()


def test_rounding_equals_its_definition():
    rng = np.random.default_rng(0)
    for n_classes in (1, 2, 3, 5):
        rows = rng.dirichlet(np.ones(n_classes), cases(60))
        for n_parts in (1, 3, 10, 100):
            expected = [naive.round_to_parts(row, n_parts) for row in rows]
            assert_array_equal(round_votes(rows, 1 / n_parts), expected)


def test_ties_go_to_the_first_class():
    assert round_votes(np.array([[0.5, 0.5], [0.25, 0.75]]), 1.0).tolist() == [[1, 0], [0, 1]]
    assert round_votes(np.array([[0.25, 0.25, 0.5]]), 0.5).tolist() == [[0.5, 0, 0.5]]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"agee": 1}, "row 2: expected the columns 'age', 'lactate', 'sex', got 'agee'"),
        ({"sex": "q"}, "row 2: column 'sex': expected one of 'f', 'm', 'x', or an empty cell"),
        ({"sex": ["f"]}, "expected one of"),
        ({"age": "old"}, "column 'age': expected a number from 0 to 110, or an empty cell"),
        ({"age": 500}, "expected a number from 0 to 110"),
        ({"age": math.inf}, "expected a number from 0 to 110"),
        ({"lactate": math.inf}, "expected finite numbers"),
        ([64, 2.1, "f"], "row 2: expected a mapping"),
    ],
)
def test_rows_with_unknown_columns_or_cells_are_refused(row, text):
    with pytest.raises(DataError, match=text):
        encode_rows([{}, row], SCHEMA)


def test_a_required_cell_must_be_present():
    schema = Schema((NumericColumn("age", 0, 9),), "y", (0, 1))
    with pytest.raises(DataError, match="row 2 has no valid cell in column 'age'"):
        encode_rows([{"age": 1}, {}], schema)


@pytest.mark.parametrize(
    "cells",
    [
        np.zeros((0, 3)),
        np.zeros((MAX_ROWS + 1, 3)),
        np.zeros(3),
        np.zeros((1, 4)),
        np.array([[111.0, 0, 0]]),
        np.array([[0.0, math.inf, 0]]),
        np.array([[0.0, 0, 0.5]]),
        np.array([[0.0, 0, 3]]),
        np.array([[0.0, 0, -1]]),
    ],
)
def test_coded_rows_of_a_broker_are_checked(cells):
    with pytest.raises((ValueError, WireError)):
        decode_rows(encode(VoteRows(cells)), SCHEMA)


def test_rows_survive_the_way_to_a_provider():
    rows = [*ROWS, {"age": "110", "lactate": -3e9, "sex": "x"}]
    found = decode_rows(encode_rows(rows, SCHEMA), SCHEMA)

    nan = math.nan
    expected = [[64, 2.1, 0], [12.5, nan, 1], [nan, 9.75, nan], [nan] * 3, [110, -3e9, 2]]
    assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "found",
    [
        [math.nan, 0.5, 0.5],
        [0.5, 0.6, 0.1],
        [1.5, -0.5, 0.0],
        [0.5, 0.5],
        [math.inf, 0.0, 0.0],
        ["a", "b", "c"],
        ValueError("the patient aged 64"),
        KeyError("lactate 2.1"),
        MemoryError("sex f"),
    ],
)
def test_a_broken_model_is_refused_without_content(found, caplog):
    party = PolicyParty(as_voter(Odd(found)), "outcomes", PolicySection(level="probabilities"))
    with pytest.raises(Refused) as refused:
        ask(party)

    assert refused.value.args == (MODEL_FAILED, "")
    assert len(caplog.records) == 1
    assert not {"64", "2.1"} & set(caplog.text.replace(":", " ").split())


def test_probabilities_of_single_precision_are_accepted():
    found = np.array([1 / 3, 1 / 3, 1 / 3], np.float32)
    reply = as_voter(Odd(found)).answer(VoteRequest("q", encode_rows([{}], SCHEMA), 1))
    assert_array_equal(reply.probabilities, [found.astype(np.float64)])


def test_a_model_with_one_class_votes_for_it():
    voter = as_voter(Odd([1.0], classes_=["ward"]))
    assert voter.vote(np.array([[1.0, 2.0, 0.0]])).tolist() == [[0.0, 1.0, 0.0]]


def test_classes_of_integers_and_booleans_are_found_by_name():
    schema = Schema(SCHEMA.columns, "y", (1, 0))
    for classes in ([0, 1], np.array([0, 1]), np.array([0.0, 1.0]), ["0", "1"]):
        voter = as_voter(Odd([0.25, 0.75], classes_=classes), schema)
        assert voter.vote(np.array([[1.0, 2.0, 0.0]])).tolist() == [[0.75, 0.25]]


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (LogisticRegression(), "expected a fitted classifier"),
        (SimpleImputer(), "expected a fitted classifier"),
        (Odd([1.0], classes_=["ward", "morgue"]), "has the class 'morgue'; the classes"),
        (Odd([1.0], classes_=[[0, 1], [0, 1]]), "expected a fitted classifier"),
        (LogisticRegression().fit([[0.0], [1.0]], ["home", "ward"]), "expects 1 features"),
        (
            LogisticRegression().fit(pd.DataFrame({"agee": [0, 1]}), ["home", "ward"]),
            "has no column 'agee'",
        ),
    ],
)
def test_models_that_do_not_suit_the_schema_are_refused(model, text):
    with pytest.raises(DataError, match=text):
        Voter("north", model, SCHEMA)


def test_the_file_of_a_model_runs_no_code(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        skops.io.dump({"model": Odd([1.0])}, folder / "odd.skops")
    (folder / "pickled.skops").write_bytes(b"\x80\x04cos\nsystem\n.")
    for file, text in (("odd", "add to its source: trusted = "), ("pickled", "is no model")):
        with pytest.raises(DataError, match=text):
            read(folder, "north", file=f"{file}.skops")
    with pytest.raises(DataError, match="there is no file"):
        read(folder, "north", file="absent.skops")


def test_trusted_types_are_read(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        skops.io.dump(Odd([0.2, 0.3, 0.5], list(CLASSES)), folder / "trusted.skops")
    types = ["tests.service.voters.Odd"]
    found = read(folder, "north", file="trusted.skops", trusted=types)
    assert found.party.score == 1 / 3  # it always votes for one class of three


def test_held_out_rows_need_labels(folder):
    table = pd.read_csv(folder / "north.csv")
    table.drop(columns="outcome").to_csv(folder / "unlabelled.csv", index=False)
    table.assign(outcome="morgue").to_csv(folder / "others.csv", index=False)
    for file in ("unlabelled", "others"):
        with pytest.raises(DataError, match=r"no column 'outcome'|has no row that the schema"):
            read(folder, "north", held_out=f"{file}.csv")


def test_held_out_rows_in_parquet_give_the_same_score(folder):
    pd.read_csv(folder / "north.csv").to_parquet(folder / "north.parquet")
    first, second = read(folder, "north"), read(folder, "north", held_out="north.parquet")
    assert first.party.score == second.party.score
    assert first.epoch != second.epoch


def test_the_version_is_that_of_the_files(folder):
    assert read(folder, "north").epoch == read(folder, "north").epoch
    assert read(folder, "north").epoch != read(folder, "south").epoch


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"trust": "sealed"}, "omit filters, and sealed trust"),
        ({"filters": {"age": "number"}}, "omit filters, and sealed trust"),
        ({"metric": "tabular"}, "expected kind = 'model'"),
        ({"source": {"file": "north.csv"}}, "expected kind = 'model'"),
        ({"policy": {}}, "expected a level of none, label, probabilities"),
        ({"policy": {"level": "distances"}}, "expected a level of"),
        ({"policy": {"level": "none", "users": {"bob": {"level": "ids"}}}}, "expected a level"),
        ({"policy": {"level": "label", "privacy": {"epsilon": 1, "max_queries": 1}}}, "private"),
        ({"policy": {"level": "label", "users": {"bob": {"min_k": 5}}}}, "omit privacy and min_k"),
        ({"policy": {"level": "label", "probability_step": 0.3}}, "1 by a whole number"),
        ({"policy": {"level": "label", "probability_step": 1e-300}}, "1 by a whole number"),
    ],
)
def test_settings_that_do_not_suit_votes_are_refused(changes, text):
    source = {"kind": "model", "file": "a.skops", "held_out": "a.csv"}
    content = {**SECTION, "source": source, "policy": {"level": "label"}}
    with pytest.raises(ValueError, match=text):
        OfferSection.model_validate({**content, **changes})


def test_searches_have_no_levels_of_votes():
    content = {"metric": "euclidean", "source": {"file": "a.csv"}}
    with pytest.raises(ValueError, match="the levels label, probabilities are for votes"):
        OfferSection.model_validate({**content, "policy": {"level": "label"}})


def test_a_schema_of_votes_has_classes_and_no_sets(tmp_path):
    for text in ('[columns.a]\nkind = "number"', 'label = "y"\n[columns.a]\nkind = "number"'):
        (tmp_path / "votes.toml").write_text(text)
        with pytest.raises(DataError, match="expected label and classes for votes"):
            make_section("north").read_schema(tmp_path)


def test_levels_decide_what_users_see():
    groups = {"doctors": {"level": "probabilities"}}
    users = {"bob": {"level": "none"}}
    section = PolicySection.model_validate(
        {"level": "label", "probability_step": 0.1, "users": users, "groups": groups}
    )
    party = PolicyParty(as_voter(Odd([0.34, 0.21, 0.45])), "outcomes", section)

    assert ask(party, [{}]).probabilities.tolist() == [[0, 0, 1]]
    with pytest.raises(Refused, match=NOT_ALLOWED):
        ask(party, user="bob")
    party.groups = ("doctors",)
    assert ask(party, [{}]).probabilities.tolist() == [[0.3, 0.2, 0.5]]


def test_quotas_are_of_rows_and_requests(tmp_path):
    section = PolicySection.model_validate(
        {"level": "label", "max_k": 3, "objects_per_day": 7, "queries_per_day": 3}
    )
    log = AccessLog(tmp_path / "log.sqlite")
    party = PolicyParty(as_voter(Odd([0.2, 0.3, 0.5])), "outcomes", section, log)

    with pytest.raises(Refused, match=NOT_ALLOWED):
        ask(party, [{}] * 4)
    for number in (1, 2):
        ask(party, [{}] * 3, name=f"q{number}")
    with pytest.raises(Refused, match=QUOTA_SPENT):
        ask(party, [{}] * 2, name="q3")
    assert len(ask(party, [{}], name="q4").probabilities) == 1
    with pytest.raises(Refused, match=QUOTA_SPENT):
        ask(party, [{}], name="q5")
    assert len(ask(party, [{}], user="bob", name="q6").probabilities) == 1
    assert [entry["outcome"] for entry in log.entries()].count("") == 4
    log.close()


def test_a_broker_cannot_state_fewer_rows_than_it_sends():
    party = PolicyParty(as_voter(Odd([0.2, 0.3, 0.5])), "outcomes", PolicySection(level="label"))
    party.query = "q"
    with pytest.raises(Refused, match="not an object of this metric"):
        party.answer(VoteRequest("q", encode_rows(ROWS, SCHEMA), 1))


def average_of(**each):
    """Return the result of a coordinator that receives replies."""
    coordinator = collect_votes(b"", (1, 2), name="q")
    next(coordinator)
    with pytest.raises(StopIteration) as stopped:
        coordinator.send(Replies(each, None, {}))
    return stopped.value.value


@pytest.mark.parametrize(
    "reply",
    [
        VoteReply(np.array([[0.5, 0.6]]), 0.5, 1),
        VoteReply(np.array([[math.nan, 1.0]]), 0.5, 1),
        VoteReply(np.array([[1.0]]), 0.5, 1),
        VoteReply(np.array([[1, 0]]), 0.5, 1),
        VoteReply(np.array([[1.0, 0.0]]), 1.5, 1),
        VoteReply(np.array([[1.0, 0.0]]), -0.5, 1),
        VoteReply(np.array([[1.0, 0.0]]), 0.5, 0),
    ],
)
def test_a_provider_that_returns_no_votes_is_named(reply):
    good = VoteReply(np.array([[0.5, 0.5]]), 0.5, 1)
    coordinator = collect_votes(b"", (1, 2), name="q")
    next(coordinator)
    with pytest.raises(ProtocolError, match="party 'south'"):
        coordinator.send(Replies({"north": good, "south": reply}, None, {}))


def test_a_voter_without_skill_has_no_weight():
    votes = average_of(
        north=VoteReply(np.array([[1.0, 0.0]]), 0.0, 5),
        south=VoteReply(np.array([[0.25, 0.75]]), 0.5, 1),
    )
    assert votes.probabilities.tolist() == [[0.25, 0.75]]
    assert votes.weights == {"north": 0.0, "south": 0.5}


@settings(max_examples=cases(100), deadline=None)
@given(st.lists(st.lists(st.floats(), min_size=2, max_size=2), min_size=1, max_size=3))
def test_probabilities_are_recognized(rows):
    table = np.array(rows)
    expected = all(
        all(0 <= cell <= 1 for cell in row) and abs(sum(row) - 1) <= 1e-5 for row in rows
    )
    assert are_probabilities(table, (len(rows), 2)) is expected
    assert not are_probabilities(table, (len(rows), 3))


def test_votes_of_rows_that_a_model_was_fitted_on_are_more_certain():
    def read_rows(table):
        rows = SCHEMA.encode(table)
        return rows.x, np.array([CLASSES.index(label) for label in rows.y])

    tables = [make_table(200, seed) for seed in range(3)]
    models = [
        RandomForestClassifier(100, random_state=0).fit(*read_rows(table)) for table in tables
    ]
    (known, labels), (new, others) = read_rows(tables[0]), read_rows(make_table(600, seed=99))

    def rank_pairs(models, step):
        """Return how often a row of the first model is more certain than a new one."""
        votes = [
            round_votes(model.predict_proba(np.vstack([known, new])), step) for model in models
        ]
        certainty = average_votes(votes, [1.0] * len(votes))
        truth = np.concatenate([labels, others])
        return roc_auc_score(np.arange(800) < 200, certainty[np.arange(800), truth])

    found = [rank_pairs(models[:n], step) for n in (1, 3) for step in (0.0, 1.0)]
    assert_allclose(found, [0.75, 0.63, 0.6, 0.58], atol=0.03)  # forests differ by version


def test_six_rows_copy_a_linear_model_of_five_columns():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5))
    model = LogisticRegression().fit(x, x @ rng.normal(size=5) + rng.normal(size=300) > 0)
    rows = np.vstack([np.zeros(5), np.eye(5)])

    def copy(step):
        votes = round_votes(model.predict_proba(rows), step)
        logits = np.log(votes[:, 1] / votes[:, 0])
        return np.append(logits[1:] - logits[0], logits[0])

    exact = np.append(model.coef_, model.intercept_)
    assert_allclose(copy(0.0), exact, rtol=1e-9, atol=1e-12)
    assert abs(copy(0.05) - exact).max() > 0.05


def test_private_votes_are_refused_at_the_broker():
    section = {**SECTION, "providers": ["north"], "privacy": {"epsilon": 1}}
    with pytest.raises(ValueError, match="votes are not private"):
        BrokerConfig.model_validate({"format": 1, "collections": {"outcomes": section}})


def test_replies_survive_the_wire():
    reply = VoteReply(np.array([[0.25, 0.75]]), 0.5, 7)
    found = decode(encode(reply), (VoteReply,))
    assert_array_equal(found.probabilities, reply.probabilities)
    assert (found.score, found.n_held_out) == (0.5, 7)
