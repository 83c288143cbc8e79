"""What each provider may learn of the others, query by query: noise that is paid for once."""

import hashlib
import os
import struct
from collections.abc import Callable, Mapping

from fedneighbors.methods.fedknn.private.noise import CountNoise, PaperNoise
from fedneighbors.privacy.ledger import Ledger

__all__ = ["charged_noise"]

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

    Parameters
    ----------
    ledger : Ledger
        With a budget for each provider.
    law : CountNoise or PaperNoise
        Of the noise.
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
        :class:`~fedneighbors.errors.BudgetExceeded` if the budget of a provider does not allow it;
        nothing was charged then, unless another process took the room in the same moment.
    """

    def noise_of(epoch: bytes, providers: tuple[str, ...]) -> Mapping[str, tuple[int, int]]:
        ids = {provider: _release_id(query, epoch, law, provider) for provider in providers}
        for provider in providers:
            ledger.require_room(ids[provider], dataset=provider, user=user, cost=law.cost)
        return {
            provider: _PAIR.unpack(
                ledger.release(
                    ids[provider],
                    dataset=provider,
                    user=user,
                    cost=law.cost,
                    draw=lambda: _PAIR.pack(*law.draw(bits=bits)),
                    purpose="counts of one search",
                )
            )
            for provider in providers
        }

    return noise_of


def _release_id(query: bytes, epoch: bytes, law: CountNoise | PaperNoise, provider: str) -> str:
    """Return an id that is the same for the same question about the same objects, k included."""
    digest = hashlib.sha256()
    for word in (query, epoch, repr(law).encode(), provider.encode()):
        digest.update(struct.pack("<q", len(word)))
        digest.update(word)
    return f"search {digest.hexdigest()}"
