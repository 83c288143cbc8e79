import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from fedneighbors.errors import AggregationError
from fedneighbors.federation._loop import sum_replies
from fedneighbors.federation._masking import (
    MaskInput,
    OpenSum,
    Unmask,
)
from fedneighbors.federation._roles import Refused
from fedneighbors.federation._stores import (
    MAX_OPEN_ROUNDS,
    POLICY,
    FolderStore,
    MemoryStore,
)
from tests.federation.masked_parties import Wire, enroll, make_parties, run_masked_sum

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


def test_erased_step_still_counts_as_taken(store):
    store.keep(ROUNDS[0], "open", b"secret")
    store.keep(ROUNDS[0], "unmask", b"reply")

    store.erase(ROUNDS[0], ("open", "deal"))

    assert store.get(ROUNDS[0], "open") == b""
    assert store.keep(ROUNDS[0], "open", b"again") == b""
    assert store.get(ROUNDS[0], "deal") is None
    assert store.get(ROUNDS[0], "unmask") == b"reply"


def test_oldest_unfinished_rounds_are_erased(store):
    store.keep(POLICY, "table", b"digest")
    for k, round_id in enumerate(ROUNDS):
        store.keep(round_id, "open", b"secret")
        if isinstance(store, FolderStore):  # the times of fast writes may be equal
            os.utime(store._path(round_id, "open"), (k, k))

    assert store.keep(POLICY, "table", b"later") == b"digest"
    not_erased = [round_id for round_id in ROUNDS if store.get(round_id, "open") == b"secret"]
    assert not_erased == ROUNDS[-MAX_OPEN_ROUNDS:]
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
    masked, roster = enroll(make_parties(n), stores)

    def make_rebuilt(party):
        def build():
            store = FolderStore(tmp_path / party.name)
            (wrapped,) = [p for p in make_parties(n) if p.name == party.name]
            return type(party)(wrapped, identity=party._identity, roster=roster, store=store)

        return RebuiltParty(build, party.name)

    return [make_rebuilt(party) for party in masked], roster


@pytest.mark.parametrize("silent", [{}, {MaskInput: {"p4"}}])
def test_rebuilt_parties_form_the_same_sum(tmp_path, silent):
    parties, roster = rebuilt_parties(tmp_path, 5)

    replies, _ = run_masked_sum(Wire(parties, silent), roster)

    drop_outs = {name for names in silent.values() for name in names}
    summed = {p.name: p.answer(None) for p in make_parties(5) if p.name not in drop_outs}
    assert replies.total == sum_replies(summed)


def test_no_secret_is_left_in_the_folder_after_the_sum(tmp_path):
    parties, roster = rebuilt_parties(tmp_path, 3)

    run_masked_sum(Wire(parties), roster)

    for k in range(3):
        files = [p for p in (tmp_path / f"p{k}").iterdir() if p.stem != POLICY]
        sizes = {p.name.split(".")[1]: p.stat().st_size for p in files}
        assert {step for step, size in sizes.items() if size} == {"settle", "unmask"}
        assert set(sizes) == {"open", "deal", "hold", "mask", "settle", "unmask"}


def test_rebuilt_party_refuses_a_finished_round(tmp_path):
    parties, roster = rebuilt_parties(tmp_path, 3)
    wire = Wire(parties)
    run_masked_sum(wire, roster)

    with pytest.raises(Refused, match="the round is over"):
        parties[0].answer(wire.get_messages(OpenSum, "p0")[0])
    assert parties[0].answer(wire.get_messages(Unmask, "p0")[0]).seed_shares.keys() == {
        "p0",
        "p1",
        "p2",
    }


def test_party_that_lost_its_state_is_named(tmp_path):
    parties, roster = rebuilt_parties(tmp_path, 3)

    def delete_state(name, request):
        if name == "p1" and type(request) is MaskInput:
            for path in (tmp_path / "p1").iterdir():
                path.unlink()
        return request

    with pytest.raises(AggregationError, match="'p1': it refused a masked sum: an unknown round"):
        run_masked_sum(Wire(parties, on_request=delete_state), roster)


def test_concurrent_stores_keep_one_content_of_a_step(tmp_path):
    contents = [bytes([k]) * 1000 for k in range(8)]
    barrier = Barrier(len(contents))

    def take(content):
        store = FolderStore(tmp_path)
        barrier.wait()
        return store.keep(ROUNDS[0], "settle", content)

    with ThreadPoolExecutor(len(contents)) as pool:
        stored = set(pool.map(take, contents))

    assert len(stored) == 1
    assert stored == {FolderStore(tmp_path).get(ROUNDS[0], "settle")}


def test_an_old_temporary_file_of_a_crash_is_swept(tmp_path):
    old, new = (tmp_path / f".{ROUNDS[0]}.open.{digits}.part" for digits in ("0" * 12, "1" * 12))
    for part in (old, new):
        part.write_bytes(b"secret")
    os.utime(old, (0, 0))

    FolderStore(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == [new.name]
