"""Party side of masked sums.

A party trusts the coordinator only to deliver messages: it checks every key against its own
roster, checks every list of parties against the earlier ones, and takes each step of a round once.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fedneighbors.errors import AggregationError, WireError
from fedneighbors.federation._masking import (
    DIGEST_BYTES,
    Advert,
    Confirm,
    Confirmation,
    DealShares,
    MaskedInput,
    MaskInput,
    OpenSum,
    Revealed,
    SealedShares,
    Unmask,
    advert_digest,
    commit_share,
    integer_fields,
    is_summable,
    keys_context,
    sealed_digest,
    sum_context,
    survivors_digest,
)
from fedneighbors.federation._messages import Message, decode, encode, message
from fedneighbors.federation._party_policy import check_quoted, remember, sign_reply
from fedneighbors.federation._roles import (
    MALFORMED,
    MASKED_ONLY,
    MASKED_SUM_PREFIX,
    MaskedRound,
    Party,
    Refused,
)
from fedneighbors.federation._stores import MaskStore
from fedneighbors.secure_sum._keys import Identity, Roster, digest, seal, unseal
from fedneighbors.secure_sum._masks import (
    Secrets,
    derive_public_key,
    generate_secret,
    layout_of,
    mask,
    to_cells,
)
from fedneighbors.secure_sum._shares import SECRET_BYTES, check_threshold, split

T = TypeVar("T")


@message
class OpenState:
    """State after :class:`OpenSum`; ``request`` is its frame."""

    request: bytes
    mask_private: bytes
    seal_private: bytes
    seed: bytes
    reply: bytes

    def __repr__(self) -> str:
        return "OpenState(secrets)"


@message
class DealState:
    """State after :class:`DealShares`, with the party's own shares of its own secrets.

    ``keys_digest`` is the result of `keys_context`.
    """

    keys_digest: bytes
    mask_keys: dict[str, bytes]
    seed_share: bytes
    key_share: bytes
    reply: bytes

    def __repr__(self) -> str:
        return "DealState(secrets)"


@message
class HoldState:
    """State after :class:`MaskInput`: shares of each member's secrets, held by this party.

    ``context`` is the result of `sum_context`.
    """

    context: bytes
    members: tuple[str, ...]
    seed_shares: dict[str, bytes]
    key_shares: dict[str, bytes]

    def __repr__(self) -> str:
        return "HoldState(secrets)"


class _StepStore:
    """Stored steps of a party in each round; each step is taken at most once.

    The first content stored for a step wins, also against another process that takes the same step
    concurrently. A repeated request thus gets the same bytes, and an altered one is refused. An
    erased step still counts as taken.

    Step ``"hold"`` stores :class:`HoldState`, step ``"settle"`` the digest of the confirmed
    survivors. The other steps are named after their requests.
    """

    def __init__(self, store: MaskStore) -> None:
        self._store = store

    def take(self, request: Any, step: str, make_content: Callable[[], bytes]) -> bytes:
        """Take a step unless it was taken before; return its stored content.

        Refuse if the step was taken with another request, or if the round is over.
        """
        request_digest = hashlib.sha256(encode(request)).digest()
        stored = self._store.get(request.round_id, step)
        if stored is None:
            stored = self._store.keep(request.round_id, step, request_digest + make_content())
        if not stored:
            raise _refusal("the round is over")
        if stored[:DIGEST_BYTES] != request_digest:
            raise _refusal("this step of the round was taken with another request")
        return stored[DIGEST_BYTES:]

    def load(self, round_id: str, step: str, content_class: type[T]) -> T:
        """Return the content of a taken step; refuse if erased or unknown."""
        stored = self._store.get(round_id, step)
        if not stored:
            raise _refusal("an unknown round" if stored is None else "the round is over")
        content: T = decode(stored[DIGEST_BYTES:], (content_class,))
        return content

    def confirm_survivors(self, round_id: str, list_digest: bytes) -> None:
        """Store the digest of the list of survivors; refuse a second list."""
        if self._store.keep(round_id, "settle", list_digest) != list_digest:
            raise _refusal("another list of survivors was confirmed before")

    def erase(self, round_id: str) -> None:
        """Erase the secrets of a round; its steps still count as taken."""
        self._store.erase(round_id, ("open", "deal", "hold", "mask"))


def _refusal(reason: str, detail: str = "") -> Refused:
    """Return the error that refuses a step of a masked sum."""
    return Refused(MASKED_SUM_PREFIX + reason, detail)


@contextmanager
def _refuse_on_error(party: str = "") -> Iterator[None]:
    """Turn an :class:`AggregationError` into a refusal.

    The refusal names the party of the error, otherwise ``party``.
    """
    try:
        yield
    except AggregationError as error:
        at_fault = error.party or party
        reason = f"party {at_fault!r}: {error.reason}" if at_fault else error.reason
        raise _refusal("this step failed", reason) from None


class MaskedParty:
    """Wrapper that adds the protocol of masked sums to a party.

    Parameters
    ----------
    party : Party
        The wrapped party, which holds the data and computes the replies.
    identity : Identity
        The party's signing key; its public key must be in the roster.
    roster : Roster
        The enrolled parties, as this party knows them.
    store : MaskStore
        State between exchanges; not shared with other parties.

    Raises
    ------
    ValueError
        If the identity is not in the roster.
    """

    def __init__(
        self, party: Party, *, identity: Identity, roster: Roster, store: MaskStore
    ) -> None:
        enrolled = roster.name_of(identity)
        if enrolled is None:
            raise ValueError("the public key of this party is not in its roster; enroll it")
        self.name = party.name
        self.reply_grid_s = getattr(party, "reply_grid_s", 0.0)
        self._enrolled = enrolled
        self._party = party
        self._identity = identity
        self._roster = roster
        self._store = store
        self._state = _StepStore(store)

    @property
    def accepts(self) -> tuple[type[Any], ...]:
        """Return the request classes of the wrapped party and of masked sums."""
        return (*self._party.accepts, OpenSum, DealShares, MaskInput, Confirm, Unmask)

    def answer(self, request: Message) -> Message:
        """Return the reply to a request, or raise :class:`~fedneighbors.federation.Refused`.

        A summable reply is refused outside a masked sum unless its request class sets
        ``one_by_one = True``.
        """
        match request:
            case OpenSum():
                return self._open(request)
            case DealShares():
                return self._deal(request)
            case MaskInput():
                return self._mask(request)
            case Confirm():
                return self._confirm(request)
            case Unmask():
                return self._unmask(request)
        request_class = type(request)
        if is_summable(request_class.reply) and not getattr(request_class, "one_by_one", False):
            raise Refused(MASKED_ONLY, request_class.__name__)
        check_quoted(request, name=self._enrolled, roster=self._roster)
        reply = self._party.answer(request)
        return sign_reply(request, reply, name=self._enrolled, identity=self._identity)

    def _open(self, request: OpenSum) -> Advert:
        def make() -> bytes:
            self._check_opening(request)
            mask_private, seal_private, seed = (generate_secret() for _ in range(3))
            keys = derive_public_key(mask_private), derive_public_key(seal_private)
            signature = self._identity.sign(advert_digest(request, self._enrolled, *keys))
            reply = encode(Advert(request.round_id, *keys, signature))
            return encode(OpenState(encode(request), mask_private, seal_private, seed, reply))

        return _decode_reply(self._state.take(request, "open", make), OpenState, Advert)

    def _check_opening(self, request: OpenSum) -> None:
        if self._enrolled not in request.names:
            raise _refusal("this party is not among the parties of the round", self._enrolled)
        for name in request.names:
            if name not in self._roster.keys:
                raise _refusal("a party is not in this party's roster", name)
        noised = bool(getattr(self._find_request(request.request_name), "noised", False))
        # without noise, a group that the coordinator chooses must not be small
        n_parties = len(request.names) if noised else len(self._roster.keys)
        with _refuse_on_error():
            check_threshold(len(request.names), request.threshold, noised=noised)
            check_threshold(n_parties, request.threshold, noised=noised)

    def _find_request(self, name: str) -> type[Any]:
        for request_class in self._party.accepts:
            if request_class.__name__ == name:
                return request_class
        raise _refusal("an unknown request", name)

    def _deal(self, request: DealShares) -> SealedShares:
        def make() -> bytes:
            opened = self._state.load(request.round_id, "open", OpenState)
            opening = decode(opened.request, (OpenSum,))
            self._check_adverts(request, opening, decode(opened.reply, (Advert,)))
            return encode(self._make_shares(request, opening, opened))

        return _decode_reply(self._state.take(request, "deal", make), DealState, SealedShares)

    def _check_adverts(self, request: DealShares, opening: OpenSum, advert: Advert) -> None:
        if not set(request.adverts) <= set(opening.names):
            raise _refusal("a party joined after the round was opened")
        if len(request.adverts) < opening.threshold:
            raise _refusal("fewer parties are left than the threshold", str(len(request.adverts)))
        if request.adverts.get(self._enrolled, ())[:2] != (advert.mask_key, advert.seal_key):
            raise _refusal("the keys of this party were altered in transit")
        for name, (mask_key, seal_key, signature) in request.adverts.items():
            to_sign = advert_digest(opening, name, mask_key, seal_key)
            if not self._roster.has_signed(name, to_sign, signature):
                raise _refusal("keys that are not signed by the enrolled party", name)

    def _make_shares(self, request: DealShares, opening: OpenSum, opened: OpenState) -> DealState:
        keys_digest = keys_context(opening, request.adverts)
        counts = {"threshold": opening.threshold, "n_shares": len(opening.names)}
        pairs = list(
            zip(split(opened.seed, **counts), split(opened.mask_private, **counts), strict=True)
        )
        own_pair = pairs[opening.names.index(self._enrolled)]
        sealed = {}
        for name, pair in zip(opening.names, pairs, strict=True):
            if name in request.adverts:
                sealed[name] = self._seal_pair(name, pair, request.adverts[name][1], keys_digest)
        # the whole seed has no holder: the coordinator checks the combined shares against it
        commitment = commit_share(keys_digest, self._enrolled, "", "whole seed", opened.seed)
        reply = encode(SealedShares(request.round_id, commitment, sealed))
        mask_keys = {name: entry[0] for name, entry in request.adverts.items()}
        return DealState(keys_digest, mask_keys, *own_pair, reply)

    def _seal_pair(
        self, holder: str, pair: tuple[bytes, bytes], seal_key: bytes, keys_digest: bytes
    ) -> tuple[bytes, bytes, bytes, bytes]:
        """Encrypt shares for their holder; commit to and sign them."""
        sealed = b""
        if holder != self._enrolled:
            info = sealed_digest(keys_digest, self._enrolled, holder)
            with _refuse_on_error(holder):
                sealed = seal(b"".join(pair), seal_key, info=info)
        commitments = _commit_pair(keys_digest, self._enrolled, holder, pair)
        to_sign = sealed_digest(keys_digest, self._enrolled, holder, sealed, *commitments)
        return sealed, *commitments, self._identity.sign(to_sign)

    def _mask(self, request: MaskInput) -> MaskedInput:
        def make() -> bytes:
            return encode(self._unseal_shares(request))

        held: HoldState = decode(self._state.take(request, "hold", make), (HoldState,))
        frame = self._state.take(request, "mask", lambda: self._mask_reply(request, held))
        reply: MaskedInput = decode(frame, (MaskedInput,))
        return reply

    def _unseal_shares(self, request: MaskInput) -> HoldState:
        opened = self._state.load(request.round_id, "open", OpenState)
        opening: OpenSum = decode(opened.request, (OpenSum,))
        dealt = self._state.load(request.round_id, "deal", DealState)
        members = request.members
        if self._enrolled not in members or not set(members) <= set(dealt.mask_keys):
            raise _refusal("the parties of the sum are not those that advertised keys")
        if len(members) < opening.threshold:
            raise _refusal("fewer parties are left than the threshold", str(len(members)))
        if set(request.sealed) != set(members) - {self._enrolled}:
            raise _refusal("the sealed shares are not those of the other parties")
        if hashlib.sha256(request.request).digest() != opening.request_digest:
            raise _refusal("the request is not the one that all parties agreed on")
        pairs = {self._enrolled: (dealt.seed_share, dealt.key_share)}
        for name, entry in request.sealed.items():
            pairs[name] = self._unseal_pair(name, entry, opened.seal_private, dealt.keys_digest)
        return HoldState(
            sum_context(dealt.keys_digest, members),
            members,
            {name: pair[0] for name, pair in pairs.items()},
            {name: pair[1] for name, pair in pairs.items()},
        )

    def _unseal_pair(
        self,
        dealer: str,
        entry: tuple[bytes, bytes, bytes, bytes],
        private: bytes,
        keys_digest: bytes,
    ) -> tuple[bytes, bytes]:
        *parts, signature = entry
        to_sign = sealed_digest(keys_digest, dealer, self._enrolled, *parts)
        if not self._roster.has_signed(dealer, to_sign, signature):
            raise _refusal("a share that is not signed by the enrolled party", dealer)
        info = sealed_digest(keys_digest, dealer, self._enrolled)
        with _refuse_on_error(dealer):
            content = unseal(entry[0], private, info=info)
        pair = content[:SECRET_BYTES], content[SECRET_BYTES:]
        if _commit_pair(keys_digest, dealer, self._enrolled, pair) != (entry[1], entry[2]):
            raise _refusal("a share does not match its dealer's commitment", dealer)
        return pair

    def _mask_reply(self, request: MaskInput, held: HoldState) -> bytes:
        opened = self._state.load(request.round_id, "open", OpenState)
        dealt = self._state.load(request.round_id, "deal", DealState)
        opening: OpenSum = decode(opened.request, (OpenSum,))
        arrays = integer_fields(self._ask_party(request.request, opening, held))
        with _refuse_on_error():
            cells = to_cells(arrays, n_parties=len(held.members))
        public_keys = {name: dealt.mask_keys[name] for name in held.members}
        secrets = Secrets(self._enrolled, opened.mask_private, opened.seed)
        with _refuse_on_error():
            mask(cells, secrets, public_keys, context=held.context)
        return encode(MaskedInput(request.round_id, layout_of(arrays), cells))

    def _ask_party(self, frame: bytes, opening: OpenSum, held: HoldState) -> Message:
        request_class = self._find_request(opening.request_name)
        try:
            request = decode(frame, (request_class,))
        except WireError:
            raise Refused(MALFORMED) from None
        check_quoted(request, name=self._enrolled, roster=self._roster)
        if not getattr(request_class, "masked_only", False):
            return self._party.answer(request)
        masked = MaskedRound(
            held.context.hex(), len(held.members), len(opening.names), opening.threshold
        )
        return self._party.contribute(request, masked)  # type: ignore[attr-defined]

    def _confirm(self, request: Confirm) -> Confirmation:
        held = self._confirm_survivors(request.round_id, request.survivors)
        to_sign = survivors_digest(held.context, request.survivors)
        return Confirmation(request.round_id, self._identity.sign(to_sign))

    def _confirm_survivors(self, round_id: str, survivors: tuple[str, ...]) -> HoldState:
        """Commit to one list of survivors.

        With a second list the coordinator could request shares of both secrets of a party.
        """
        self._state.load(round_id, "mask", MaskedInput)
        held = self._state.load(round_id, "hold", HoldState)
        opened = self._state.load(round_id, "open", OpenState)
        if self._enrolled not in survivors or not set(survivors) <= set(held.members):
            raise _refusal("the survivors are not parties of the sum")
        if len(survivors) < decode(opened.request, (OpenSum,)).threshold:
            raise _refusal("fewer parties are left than the threshold", str(len(survivors)))
        self._state.confirm_survivors(round_id, survivors_digest(held.context, survivors))
        self._remember_sum(decode(opened.request, (OpenSum,)), survivors)
        return held

    def _remember_sum(self, opening: OpenSum, survivors: tuple[str, ...]) -> None:
        """Refuse to unmask a second sum over other parties or tables.

        Without noise, the difference of the sums would be the part of one party, or of the changed
        rows. For a single-use request class the request is the same in all sums, too.
        """
        request_class = self._find_request(opening.request_name)
        if getattr(request_class, "noised", False):
            return
        request, names = opening.request_digest, digest("parties of a sum", survivors)
        reason = "another sum of this kind was unmasked before"
        refusal = f"{MASKED_SUM_PREFIX}{reason}; delete policy.* in mask-state to allow it"
        if hasattr(request_class, "single_use"):
            content = digest("single use", request, names, self._party.table_digest)  # type: ignore[attr-defined]
            remember(self._store, opening.request_name, content, refusal=refusal)
        else:
            table = getattr(self._party, "table_digest", b"")  # a party of one's own may have none
            content = digest("sum over a table", names, table)
            remember(self._store, request.hex(), content, refusal=refusal)

    def _unmask(self, request: Unmask) -> Revealed:
        frame = self._state.take(request, "unmask", lambda: encode(self._reveal_shares(request)))
        self._state.erase(request.round_id)
        revealed: Revealed = decode(frame, (Revealed,))
        return revealed

    def _reveal_shares(self, request: Unmask) -> Revealed:
        held = self._confirm_survivors(request.round_id, request.survivors)
        drop_outs = set(held.members) - set(request.survivors)
        if drop_outs:  # otherwise only seed shares are revealed, which needs no confirmations
            self._check_confirmations(request, held)
        return Revealed(
            request.round_id,
            {name: held.seed_shares[name] for name in request.survivors},
            {name: held.key_shares[name] for name in drop_outs},
        )

    def _check_confirmations(self, request: Unmask, held: HoldState) -> None:
        opened = self._state.load(request.round_id, "open", OpenState)
        to_sign = survivors_digest(held.context, request.survivors)
        for name, signature in request.confirmations.items():
            is_signed = self._roster.has_signed(name, to_sign, signature)
            if name not in request.survivors or not is_signed:
                raise _refusal("a confirmation is not signed by a survivor", name)
        if len(request.confirmations) < decode(opened.request, (OpenSum,)).threshold:
            raise _refusal("too few parties confirm the survivors", str(len(request.confirmations)))


def _decode_reply(state: bytes, state_class: type[Any], reply_class: type[T]) -> T:
    reply: T = decode(decode(state, (state_class,)).reply, (reply_class,))
    return reply


def _commit_pair(
    keys_digest: bytes, dealer: str, holder: str, pair: tuple[bytes, bytes]
) -> tuple[bytes, bytes]:
    return (
        commit_share(keys_digest, dealer, holder, "seed", pair[0]),
        commit_share(keys_digest, dealer, holder, "key", pair[1]),
    )
