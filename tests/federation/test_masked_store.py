import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from fedneighbors.errors import AggregationError
from fedneighbors.federation._loop import sum_replies
from fedneighbors.federation._masking import (
    MAX_OPEN_ROUNDS,
    FolderStore,
    MaskInput,
    MemoryStore,
    OpenSum,
    Unmask,
)
from fedneighbors.federation._roles import Refused
from tests.federation.maskfleet import Wire, enroll, holders, masked_sum

ROUNDS = [f"{k:032x}" for k in range(3 * MAX_OPEN_ROUNDS)]


@pytest.fixture(params=["memory", "folder"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else FolderStore(tmp_path / "state")


def test_first_content_of_a_step_wins(store):
    assert store.get(ROUNDS[0], "open") is None

    assert store.keep(ROUNDS[0], "open", b"first") == b"first"
    assert store.keep(ROUNDS[0], "open", b"second") == b"first"

    assert store.get(ROUNDS[0], "open") == b"first"
    assert store.get(ROUNDS[0], "deal") is None
    assert store.get(ROUNDS[1], "open") is None


def test_erased_step_stays_taken(store):
    store.keep(ROUNDS[0], "open", b"secret")
    store.keep(ROUNDS[0], "unmask", b"reply")

    store.erase(ROUNDS[0], ("open", "deal"))

    assert store.get(ROUNDS[0], "open") == b""
    assert store.keep(ROUNDS[0], "open", b"again") == b""
    assert store.get(ROUNDS[0], "deal") is None
    assert store.get(ROUNDS[0], "unmask") == b"reply"


def test_oldest_unfinished_rounds_are_erased(store):
    for k, round_id in enumerate(ROUNDS):
        store.keep(round_id, "open", b"secret")
        if isinstance(store, FolderStore):  # clocks of file systems are coarse
            os.utime(store._path(round_id, "open"), (k, k))

    kept = [round_id for round_id in ROUNDS if store.get(round_id, "open") == b"secret"]
    assert kept == ROUNDS[-MAX_OPEN_ROUNDS:]
    assert all(store.get(round_id, "open") is not None for round_id in ROUNDS)


def test_files_are_private_and_complete(tmp_path):
    store = FolderStore(tmp_path / "state")

    store.keep(ROUNDS[0], "open", b"secret")
    store.keep(ROUNDS[0], "open", b"other")
    store.erase(ROUNDS[0], ("open",))
    store.keep(ROUNDS[0], "deal", b"secret")

    files = sorted((tmp_path / "state").iterdir())
    assert [path.name for path in files] == [f"{ROUNDS[0]}.deal", f"{ROUNDS[0]}.open"]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


class RebuiltParty:
    """Party that is rebuilt for each message from its folder."""

    def __init__(self, build, name):
        self._build = build
        self.name = name
        self.accepts = build().accepts

    def answer(self, request):
        return self._build().answer(request)


def rebuilt_parties(tmp_path, n):
    stores = {f"p{k}": FolderStore(tmp_path / f"p{k}") for k in range(n)}
    masked, roster = enroll(holders(n), stores)

    def rebuilt(party):
        def build():
            store = FolderStore(tmp_path / party.name)
            (again,) = [p for p in holders(n) if p.name == party.name]
            return type(party)(again, identity=party._identity, roster=roster, store=store)

        return RebuiltParty(build, party.name)

    return [rebuilt(party) for party in masked], roster


@pytest.mark.parametrize("lost", [{}, {MaskInput: {"p4"}}])
def test_rebuilt_parties_form_the_same_sum(tmp_path, lost):
    parties, roster = rebuilt_parties(tmp_path, 5)

    replies, _ = masked_sum(Wire(parties, lost), roster)

    gone = {name for names in lost.values() for name in names}
    stayed = {p.name: p.answer(None) for p in holders(5) if p.name not in gone}
    assert replies.total == sum_replies(stayed)


def test_no_secret_is_left_in_the_folder_after_the_sum(tmp_path):
    parties, roster = rebuilt_parties(tmp_path, 3)

    masked_sum(Wire(parties), roster)

    for k in range(3):
        sizes = {p.name.split(".")[1]: p.stat().st_size for p in (tmp_path / f"p{k}").iterdir()}
        assert {step for step, size in sizes.items() if size} == {"settle", "unmask"}
        assert set(sizes) == {"open", "deal", "hold", "mask", "settle", "unmask"}


def test_round_stays_over_for_a_rebuilt_party(tmp_path):
    parties, roster = rebuilt_parties(tmp_path, 3)
    wire = Wire(parties)
    masked_sum(wire, roster)

    with pytest.raises(Refused, match="the round is over"):
        parties[0].answer(wire.sent(OpenSum, "p0")[0])
    assert parties[0].answer(wire.sent(Unmask, "p0")[0]).seed_shares.keys() == {"p0", "p1", "p2"}


def test_party_that_lost_its_state_is_named(tmp_path):
    parties, roster = rebuilt_parties(tmp_path, 3)

    def forgets(name, request):
        if name == "p1" and type(request) is MaskInput:
            for path in (tmp_path / "p1").iterdir():
                path.unlink()
        return request

    with pytest.raises(AggregationError, match="'p1': it refused a masked sum: an unknown round"):
        masked_sum(Wire(parties, on_request=forgets), roster)


def test_concurrent_steps_keep_one_content(tmp_path):
    contents = [bytes([k]) * 1000 for k in range(8)]
    barrier = Barrier(len(contents))

    def take(content):
        store = FolderStore(tmp_path)
        barrier.wait()
        return store.keep(ROUNDS[0], "settle", content)

    with ThreadPoolExecutor(len(contents)) as pool:
        kept = set(pool.map(take, contents))

    assert len(kept) == 1
    assert kept == {FolderStore(tmp_path).get(ROUNDS[0], "settle")}
