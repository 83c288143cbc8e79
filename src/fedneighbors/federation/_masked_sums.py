"""Coordinator side of masked sums: four exchanges, or five if parties drop out.

The coordinator learns the names of the surviving parties and the sum of their replies. A party's
masked numbers cannot be distinguished from random ones without its seed and all the keys that it
shares with the other members.
"""

import hashlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fedneighbors.errors import AggregationError, PartyRefused, ProtocolError
from fedneighbors.federation._loop import Replies
from fedneighbors.federation._masking import (
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
    build_summed_reply,
    commit_share,
    keys_context,
    sealed_digest,
    sum_context,
    survivors_digest,
)
from fedneighbors.federation._messages import Message, encode
from fedneighbors.federation._roles import MALFORMED, MASKED_SUM_PREFIX
from fedneighbors.secure_sum._keys import Roster
from fedneighbors.secure_sum._masks import Cells, derive_public_key, from_cells, unmask
from fedneighbors.secure_sum._shares import check_threshold, combine, default_threshold

log = logging.getLogger(__name__)

Deliver = Callable[[Mapping[str, Message]], Replies]
"""Function that sends a request to each party and returns the replies."""


class MaskedSums:
    """Secure aggregation of replies that the coordinator must not see.

    Parameters
    ----------
    roster : Roster
        The enrolled parties. The parties do not rely on it; each has its own roster.
    threshold : int, optional
        Minimum number of parties in a sum, at least two thirds of the n parties that get the
        request. By default floor(2 n / 3) + 1, see :mod:`~fedneighbors.secure_sum._shares`.
    """

    def __init__(self, roster: Roster, *, threshold: int | None = None) -> None:
        self._roster = roster
        self._threshold = threshold

    def total(self, requests: Mapping[str, Message], deliver: Deliver) -> Replies:
        """Return the sum of the surviving parties' replies.

        Parameters
        ----------
        requests : mapping of str to message
            The same request for each party.
        deliver : callable
            Sends a request to each party and returns the replies.

        Raises
        ------
        AggregationError
            If too few parties take part or survive, or a party violates the protocol; the error
            then names the party.
        ProtocolError
            If the parties' requests differ, or the class of the replies rejects the sum.
        PartyRefused
            If a party refuses the request itself.
        """
        names = tuple(sorted(requests))
        frames = {encode(request) for request in requests.values()}
        request = requests[names[0]]
        if len(frames) != 1:
            raise ProtocolError(
                f"{type(request).__name__}: all parties of a masked sum must get the same request, "
                "so that none can be singled out"
            )
        threshold = default_threshold(len(names)) if self._threshold is None else self._threshold
        noised = bool(getattr(type(request), "noised", False))
        check_threshold(len(names), threshold, noised=noised)
        for name in names:
            if name not in self._roster.keys:
                raise AggregationError("its key is not in the roster; enroll it", name)
        (frame,) = frames
        opening = OpenSum(
            round_id=secrets.token_hex(16),
            names=names,
            threshold=threshold,
            request_name=type(request).__name__,
            request_digest=hashlib.sha256(frame).digest(),
        )
        cells, layout, missing = _SumRound(opening, self._roster, deliver).run(frame)
        arrays = from_cells(cells, layout)
        return Replies({}, build_summed_reply(type(request).reply, arrays), missing)


class _SumRound:
    """One masked sum, from the first exchange to the last."""

    def __init__(self, opening: OpenSum, roster: Roster, deliver: Deliver) -> None:
        self._opening = opening
        self._roster = roster
        self._deliver = deliver
        self._missing: dict[str, str] = {}

    def run(self, frame: bytes) -> tuple[Cells, Any, dict[str, str]]:
        """Return the sum, its layout, and the missing parties.

        The layout contains the dtypes and shapes of the fields of the replies.
        """
        adverts = self._collect_adverts()
        keys_digest = keys_context(self._opening, adverts)
        shares = self._collect_shares(adverts, keys_digest)
        members = tuple(sorted(shares))
        context = sum_context(keys_digest, members)
        inputs = self._collect_inputs(shares, frame)
        survivors = tuple(sorted(inputs))
        layout = _check_layouts(inputs)
        cells = _sum_cells(inputs)
        not_in_sum = dict(self._missing)  # parties that drop out after this are in the sum
        revealed = self._collect_revealed(survivors, members, context)
        seeds = self._combine_secrets(survivors, "seed", revealed, shares, keys_digest)
        drop_outs = sorted(set(members) - set(inputs))
        private_keys = self._combine_secrets(drop_outs, "key", revealed, shares, keys_digest)
        for name, seed in seeds.items():
            commitment = commit_share(keys_digest, name, "", "whole seed", seed)
            if commitment != shares[name].seed_commitment:
                raise AggregationError("its shares do not combine to its seed", name)
        for name, private in private_keys.items():
            if derive_public_key(private) != adverts[name][0]:
                raise AggregationError("its shares do not combine to its key", name)
        public_keys = {name: adverts[name][0] for name in members}
        unmask(cells, seeds=seeds, dropped=private_keys, public_keys=public_keys, context=context)
        return cells, layout, not_in_sum

    def _collect_adverts(self) -> dict[str, tuple[bytes, bytes, bytes]]:
        replies = self._ask(dict.fromkeys(self._opening.names, self._opening), Advert)
        adverts = {}
        for name, advert in replies.items():
            keys = advert.mask_key, advert.seal_key
            to_sign = advert_digest(self._opening, name, *keys)
            if not self._roster.has_signed(name, to_sign, advert.signature):
                raise AggregationError("its keys are not signed with its enrolled key", name)
            adverts[name] = (*keys, advert.signature)
        self._check_distinct(adverts)
        return adverts

    def _check_distinct(self, adverts: Mapping[str, tuple[bytes, bytes, bytes]]) -> None:
        """Check that all advertised keys differ, as in Bonawitz et al. (2017)."""
        seen: set[bytes] = set()
        for name, (mask_key, seal_key, _) in adverts.items():
            if {mask_key, seal_key} & seen or mask_key == seal_key:
                raise AggregationError("it advertised a key that was advertised before", name)
            seen |= {mask_key, seal_key}

    def _collect_shares(
        self, adverts: Mapping[str, tuple[bytes, bytes, bytes]], keys_digest: bytes
    ) -> dict[str, SealedShares]:
        request = DealShares(self._opening.round_id, adverts)
        replies = self._ask(dict.fromkeys(adverts, request), SealedShares)
        for dealer, reply in replies.items():
            if set(reply.sealed) != set(adverts):
                raise AggregationError("it did not deal one share to each party", dealer)
            for holder, (*parts, signature) in reply.sealed.items():
                to_sign = sealed_digest(keys_digest, dealer, holder, *parts)
                if not self._roster.has_signed(dealer, to_sign, signature):
                    raise AggregationError(
                        "one of its shares is not signed with its enrolled key", dealer
                    )
        return replies

    def _collect_inputs(
        self, shares: Mapping[str, SealedShares], frame: bytes
    ) -> dict[str, MaskedInput]:
        members = tuple(sorted(shares))
        requests = {
            holder: MaskInput(
                self._opening.round_id,
                members,
                {dealer: shares[dealer].sealed[holder] for dealer in members if dealer != holder},
                frame,
            )
            for holder in members
        }
        return self._ask(requests, MaskedInput)

    def _collect_revealed(
        self, survivors: tuple[str, ...], members: tuple[str, ...], context: bytes
    ) -> dict[str, Revealed]:
        confirmations = {}
        if survivors != members:
            confirmations = self._collect_confirmations(survivors, context)
        request = Unmask(self._opening.round_id, survivors, confirmations)
        recipients = sorted(confirmations) or survivors
        replies = self._ask(dict.fromkeys(recipients, request), Revealed)
        drop_outs = set(members) - set(survivors)
        for name, reply in replies.items():
            if set(reply.seed_shares) != set(survivors) or set(reply.key_shares) != drop_outs:
                raise AggregationError("it revealed other shares than it was asked for", name)
        return replies

    def _collect_confirmations(
        self, survivors: tuple[str, ...], context: bytes
    ) -> dict[str, bytes]:
        request = Confirm(self._opening.round_id, survivors)
        replies = self._ask(dict.fromkeys(survivors, request), Confirmation)
        to_sign = survivors_digest(context, survivors)
        for name, reply in replies.items():
            if not self._roster.has_signed(name, to_sign, reply.signature):
                raise AggregationError("its confirmation is not signed with its key", name)
        return {name: reply.signature for name, reply in replies.items()}

    def _combine_secrets(
        self,
        dealers: Iterable[str],
        kind: str,
        revealed: Mapping[str, Revealed],
        shares: Mapping[str, SealedShares],
        keys_digest: bytes,
    ) -> dict[str, bytes]:
        """Reconstruct each dealer's seed or private mask key.

        Every revealed share is checked against its commitment.
        """
        combined = {}
        for dealer in dealers:
            by_position = {}
            for holder, reply in revealed.items():
                share = (reply.seed_shares if kind == "seed" else reply.key_shares)[dealer]
                commitment = shares[dealer].sealed[holder][1 if kind == "seed" else 2]
                if commit_share(keys_digest, dealer, holder, kind, share) != commitment:
                    raise AggregationError(f"it revealed a false share of {dealer!r}", holder)
                by_position[self._opening.names.index(holder)] = share
            combined[dealer] = combine(by_position, threshold=self._opening.threshold)
        return combined

    def _ask(self, requests: Mapping[str, Message], reply_class: type[Any]) -> dict[str, Any]:
        try:
            replies = self._deliver(requests)
        except PartyRefused as refused:
            if reply_class is Advert and refused.code == MALFORMED:
                raise AggregationError(
                    "it does not support masked sums; set identity-key, roster and mask-state in "
                    "the configuration of its node",
                    refused.party,
                ) from refused
            if not refused.code.startswith(MASKED_SUM_PREFIX):
                raise
            detail = f" ({refused.detail})" if refused.detail else ""
            reason = f"it refused a {refused.code}{detail}"
            raise AggregationError(reason, refused.party) from refused
        self._missing.update(replies.missing)
        for name, reply in replies.each.items():
            if type(reply) is not reply_class or reply.round_id != self._opening.round_id:
                raise AggregationError("its reply is of another round or step", name)
        self._check_enough(replies.each)
        return dict(replies.each)

    def _check_enough(self, replies: Mapping[str, Message]) -> None:
        if len(replies) >= self._opening.threshold:
            return
        missing = ", ".join(f"{name!r} ({why})" for name, why in sorted(self._missing.items()))
        raise AggregationError(
            f"{len(replies)} of {len(self._opening.names)} parties are left for the sum of "
            f"{self._opening.request_name}, at least {self._opening.threshold} are needed; "
            f"missing: {missing}. Nothing was unmasked; start the missing ones and repeat the run"
        )


def _check_layouts(inputs: Mapping[str, MaskedInput]) -> Any:
    """Return the layout that all inputs have, else raise.

    The error names the first party whose layout differs from the most common one.
    """
    (common, _), *_ = Counter(reply.layout for reply in inputs.values()).most_common()
    for name, reply in inputs.items():
        if reply.layout != common:
            raise AggregationError(f"its layout is {reply.layout}, others sent {common}", name)
    return common


def _sum_cells(inputs: Mapping[str, MaskedInput]) -> Cells:
    vectors = [reply.cells for reply in inputs.values()]
    total: Cells = vectors[0].copy()
    for vector in vectors[1:]:
        np.add(total, vector, out=total)  # unsigned: wraps around
    return total
