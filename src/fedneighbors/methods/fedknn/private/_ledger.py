"""What each provider may learn of the others, query by query: noise that is paid for once."""

import hashlib
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace

from fedneighbors.methods.fedknn.private._noise import CountNoise, PaperNoise
from fedneighbors.privacy.ledger._books import Terms
from fedneighbors.privacy.ledger._ledger import Ledger

_PAIR = struct.Struct("<qq")


def charged_noise(
    ledger: Ledger,
    law: CountNoise | PaperNoise,
    *,
    query: bytes,
    user: str = "search",
    bits: Callable[[int], bytes] = os.urandom,
) -> Callable[[bytes, tuple[str, ...]], Mapping[str, tuple[int, int]]]:
    """Return what draws the noise of a query under a ledger.

    The broker's ledger has a data set of the name of each provider: what that provider may learn of
    the objects of all others. One query costs every provider's budget the same. The same query in
    the same epoch gets the same noise, at no further cost, so that asking again tells nothing new;
    when the objects of a provider change, so does the epoch, and new noise is drawn and charged.

    Another user who asks what was asked before gets the same noise too, but is charged as for a new
    query: a budget of his is his own, and whether it shrinks must not tell him what others ask. The
    budgets of the data sets count that once more, which is more than the providers learn.

    Parameters
    ----------
    ledger : Ledger
        With a budget for each provider.
    law : CountNoise or PaperNoise
        Of the noise. However its numbers were written, it is the same law.
    query : bytes
        The query.
    user : str
        Who asks.
    bits : callable
        Source of random bytes.

    Returns
    -------
    callable
        Takes the epoch and the providers, returns the noise on both counts of each. Raises
        :class:`~fedneighbors.errors.BudgetExceeded` if the budget of a provider, or of the user,
        does not allow it; nothing was charged then.
    """

    def drawn(lacking: tuple[Terms, ...]) -> list[bytes]:
        return [_PAIR.pack(*pair) for pair in law.draws(len(lacking), bits=bits)]

    def noise_of(epoch: bytes, providers: tuple[str, ...]) -> Mapping[str, tuple[int, int]]:
        words = query, epoch, law.identity.encode()
        ids = {provider: _release_id(*words, provider.encode()) for provider in providers}
        while True:
            users = ledger.users_of(ids.values())
            terms = [
                Terms(ids[name], name, users.get(ids[name], user), law.cost, "counts of one search")
                for name in providers
            ]
            try:
                answers = _released(ledger, terms, user, drawn)
            except ValueError:
                if ledger.users_of(ids.values()) == users:
                    raise
                continue  # another user was faster in asking the same
            return dict(zip(providers, map(_PAIR.unpack, answers), strict=True))

    return noise_of


def _released(
    ledger: Ledger,
    terms: list[Terms],
    user: str,
    drawn: Callable[[tuple[Terms, ...]], list[bytes]],
) -> list[bytes]:
    """Return the answers to a user, under ids of his own where others asked before.

    He is charged before the answers to others are looked up.
    """
    own = [
        each if each.user == user else replace(each, query=_id_of(each, user), user=user)
        for each in terms
    ]
    first = {mine.query: each for mine, each in zip(own, terms, strict=True)}

    def of_others_or_drawn(lacking: tuple[Terms, ...]) -> list[bytes]:
        asked = [first[each.query] for each in lacking]
        others = [each for each in asked if each.user != user]
        new = tuple(each for each in asked if each.user == user)
        found = dict(zip(others, ledger.release_all(others, drawn), strict=True))
        found |= zip(new, drawn(new), strict=True)
        return [found[each] for each in asked]

    return ledger.release_all(own, of_others_or_drawn)


def _id_of(terms: Terms, user: str) -> str:
    return _release_id(terms.query.encode(), user.encode())


def _release_id(*words: bytes) -> str:
    """Return an id that is the same for the same words."""
    digest = hashlib.sha256()
    for word in words:
        digest.update(struct.pack("<q", len(word)))
        digest.update(word)
    return f"search {digest.hexdigest()}"
