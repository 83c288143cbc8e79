"""Any source that keeps the contract is exact; the checks find those that break it."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import SourceError
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.metrics._sessions import LATE
from fedneighbors.methods.fedknn.private._padding import PaddedNearestRequest
from fedneighbors.service import _offers
from fedneighbors.service._config import OfferSection
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.sources import (
    CandidateBatch,
    CandidateCount,
    Candidates,
    CandidateSource,
    PushedSource,
)
from fedneighbors.testing import check_source


class Rows:
    """Rows in a list, as a database of its own."""

    def __init__(self, points, ids, ages, version="1"):
        self.points, self.ids, self.ages, self.version = points, ids, ages, version


class ListSource(CandidateSource):
    """A source that reads the rows of a list in batches, with a loose bound."""

    def __init__(self, rows, rng, slack=0.0):
        self.rows, self.rng, self.slack = rows, rng, slack
        self.sample = np.ones((1, rows.points.shape[1]))

    def select(self, where):
        keep = np.ones(len(self.rows.ids), bool)
        for operand in () if where is None else where["age"].values():
            keep &= np.array([age is not None and age >= operand for age in self.rows.ages], bool)
        return np.flatnonzero(keep)

    def size(self, where, *, deadline_s=None):
        return len(self.select(where))

    def longest_name(self):
        return max((len(name.encode()) for name in self.rows.ids), default=0)

    def open(self, query, where, *, deadline_s=None):
        return ListCandidates(self, np.asarray(query, float), self.select(where))


class ListCandidates(Candidates):
    def __init__(self, source, query, rows):
        self.source, self.table, self.version = source, source.rows, source.rows.version
        distances = np.abs(self.table.points[rows] - query).sum(axis=1)
        order = np.lexsort((source.rng.random(len(rows)), distances))
        self.rows, self.distances = rows[order], distances[order]
        self.first = 0

    def read(self, n, *, deadline_s):
        if deadline_s is not None and self.source.rng.random() < 0.3:
            raise TimeoutError
        taken = slice(self.first, self.first + n + int(self.source.rng.integers(3)))
        self.first = taken.stop
        rest = self.distances[self.first :]
        rows = self.source.rng.permutation(self.rows[taken])
        return CandidateBatch(
            [self.table.ids[row] for row in rows],
            self.table.points[rows],
            self.bound(rest[0]) if len(rest) else math.inf,
        )

    def bound(self, distance):
        return distance * (1 - self.source.slack)


class CountingSource(ListSource):
    """A source that counts in the database."""

    def open(self, query, where, *, deadline_s=None):
        return CountingCandidates(self, np.asarray(query, float), self.select(where))


class CountingCandidates(ListCandidates):
    def count(self, radius, *, deadline_s):
        certain = self.distances <= radius - 1
        unsure = ~certain & (self.distances <= radius + 1)
        return CandidateCount(int(certain.sum()), self.table.points[self.rows[unsure]])


def rows_of(n, seed, n_columns=2, high=4):
    rng = np.random.default_rng(seed)
    ages = [None if rng.random() < 0.2 else int(rng.integers(5)) for _ in range(n)]
    points = rng.integers(0, high, (n, n_columns)).astype(float)
    return Rows(points, [f"row-{i}é" for i in range(n)], ages)


FILTERS = [{"age": {">=": 2}}, {"age": {">=": 9}}]


def check(source, **settings):
    rows = source.rows
    columns = {"age": [*rows.ages]} if any(age is not None for age in rows.ages) else None
    check_source(
        source, rows.points, rows.ids, metric="manhattan", columns=columns,
        filters=FILTERS if columns else (), **settings,
    )  # fmt: skip


@settings(max_examples=60)
@given(
    st.integers(1, 60),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.sampled_from([ListSource, CountingSource]),
)
def test_a_source_that_keeps_the_contract_is_exact(n, seed, slack, kind):
    check(kind(rows_of(n, seed), np.random.default_rng(seed), slack))


def test_a_change_is_seen_by_new_queries_alone():
    source = ListSource(rows_of(50, 0), np.random.default_rng(0))

    def change():
        source.rows = rows_of(40, 1)
        source.rows.version = "2"
        return source.rows.points, source.rows.ids

    check(source, change=change)


class HighBound(ListCandidates):
    def bound(self, distance):
        return distance + 1


class SilentEnd(ListCandidates):
    def read(self, n, *, deadline_s):
        batch = super().read(n, deadline_s=deadline_s)
        return CandidateBatch(batch.ids, batch.objects, math.inf)


class Repeating(ListCandidates):
    def read(self, n, *, deadline_s):
        first = self.first
        batch = super().read(n, deadline_s=deadline_s)
        self.first = first + 1
        return CandidateBatch(batch.ids, batch.objects, 0.0 if len(batch.ids) else math.inf)


class Altered(ListCandidates):
    def read(self, n, *, deadline_s):
        batch = super().read(n, deadline_s=deadline_s)
        return CandidateBatch(batch.ids, batch.objects.astype(np.float32) + 1e-7, batch.rest)


class WrongCount(CountingCandidates):
    def count(self, radius, *, deadline_s):
        found = super().count(radius, deadline_s=deadline_s)
        return CandidateCount(max(found.n_certain - 1, 0), found.uncertain)


class NoBound(ListCandidates):
    def bound(self, distance):
        return math.nan


class Forgetful(ListCandidates):
    def read(self, n, *, deadline_s):
        if deadline_s is not None:
            self.first += n
            raise TimeoutError
        return super().read(n, deadline_s=deadline_s)


class Falling(ListCandidates):
    exact = False

    def bound(self, distance):
        return -float(self.first)


class Late(ListCandidates):
    def read(self, n, *, deadline_s):
        if self.first:
            raise TimeoutError
        return super().read(n, deadline_s=deadline_s)


class Failing(ListCandidates):
    def read(self, n, *, deadline_s):
        raise SourceError("the column of names has a NULL")


def source_of(kind, **options):
    class Changed(ListSource):
        def open(self, query, where, *, deadline_s=None):
            return kind(self, np.asarray(query, float), self.select(where))

    return Changed(rows_of(60, 3, high=6), np.random.default_rng(0), **options)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (HighBound, "objects|the bound of the batch before"),
        (SilentEnd, "objects|the count"),
        (Repeating, "unique names"),
        (Altered, "objects|their distances"),
        (WrongCount, "the count within"),
        (NoBound, "a bound of at least"),
        (Forgetful, "objects"),
    ],
)
def test_candidates_that_break_the_contract_are_found(kind, message):
    with pytest.raises(SourceError, match=message):
        check(source_of(kind))


def test_bounds_of_approximate_candidates_may_fall():
    query = PushedSource(source_of(Falling), metric_of("manhattan"), owner="a").open([1, 2], None)
    assert [len(query.next(n).ids) for n in (5, 20, 60)] == [5, 20, 35]


def private_request(count, k):
    return PaddedNearestRequest("q", encode_query([1.0, 2.0]), np.array([count]), k, 0.0)


def test_a_private_reply_that_would_be_short_is_late():
    source = PushedSource(source_of(Late), metric_of("manhattan"), owner="a")
    party = Provider("a", source, decode=decode_query)
    party.end = time.monotonic() + 60
    assert len(party.answer(private_request(3, 50)).distances) == 50
    with pytest.raises(Refused, match=LATE):
        party.answer(private_request(47, 50))


def test_private_searches_without_versions_are_refused_before_the_table_is_scanned():
    source = source_of(ListCandidates)
    source.rows.version, source.longest_name = None, lambda: pytest.fail("scanned")
    pushed = PushedSource(source, metric_of("manhattan"), owner="a")
    party = Provider("a", pushed, decode=decode_query)
    with pytest.raises(Refused, match="needs a version"):
        party.answer(private_request(3, 50))


def test_a_source_that_cannot_be_read_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(_offers, "find_source", lambda kind: lambda _: source_of(Failing))
    section = OfferSection.model_validate({"metric": "manhattan", "source": {"kind": "list"}})
    with pytest.raises(SourceError, match="has a NULL"):
        OfferedObjects.read("a", "rows", section, tmp_path, secret=b"secret")


@pytest.mark.parametrize("attribute", ["size", "longest_name", "select"])
def test_sources_that_break_the_contract_are_found(attribute):
    class Broken(ListSource):
        pass

    wrong = {
        "size": lambda self, where, deadline_s=None: len(self.rows.ids),
        "longest_name": lambda self: 5,
        "select": lambda self, where: np.arange(len(self.rows.ids)),
    }
    setattr(Broken, attribute, wrong[attribute])

    with pytest.raises(SourceError, match="expected"):
        check(Broken(rows_of(60, 3), np.random.default_rng(0)))


def test_a_change_without_another_version_is_found(monkeypatch):
    monkeypatch.setattr("fedneighbors.testing._MAX_DELAY_S", 0.0)
    source = ListSource(rows_of(50, 0), np.random.default_rng(0))

    def change():
        source.rows = rows_of(40, 1)
        return source.rows.points, source.rows.ids

    with pytest.raises(SourceError, match="expected another version"):
        check(source, change=change)


def test_an_open_query_that_sees_a_change_is_found():
    rows = rows_of(200, 0)
    source = ListSource(rows, np.random.default_rng(0))

    def change():
        rows.points = rows.points + 1
        rows.version = "2"
        return rows.points, rows.ids

    with pytest.raises(SourceError, match="open during the change"):
        check(source, change=change)


def test_other_settings_of_a_source_begin_a_new_epoch(monkeypatch, tmp_path):
    source = ListSource(rows_of(5, 0), np.random.default_rng(0))
    monkeypatch.setattr(_offers, "find_source", lambda kind: lambda settings: source)

    def epoch(**options):
        content = {"metric": "manhattan", "source": {"kind": "list", **options}}
        section = OfferSection.model_validate(content)
        read = OfferedObjects.read("a", "rows", section, tmp_path, secret=b"secret")
        return read.party.source.epoch("1")

    assert epoch(table="one") == epoch(table="one")
    assert epoch(table="one") != epoch(table="two")


def test_metrics_have_samples_that_check_queries():
    source = ListSource(rows_of(5, 0), np.random.default_rng(0))
    pushed = PushedSource(source, metric_of("manhattan"), owner="a")
    with pytest.raises(ValueError, match="expected 2 numbers, got 3"):
        pushed.open([1.0, 2.0, 3.0], None)
    with pytest.raises(ValueError, match="expected a column among none"):
        pushed.open([1.0, 2.0], {"age": 1})
