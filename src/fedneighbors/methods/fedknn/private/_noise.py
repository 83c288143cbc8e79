"""Noise on the counts of DANN*: laws, costs, and releases charged to a ledger.

Letters: k_i and k_i' are the counts of a provider in the two rounds, as in Algorithm 2 of the
paper. PAPER.md proves what is claimed here.
"""

import hashlib
import math
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np

from fedneighbors.privacy._guarantees import (
    ApproxDP,
    Guarantee,
    Number,
    PureDP,
    Sensitivity,
    exact,
)
from fedneighbors.privacy.ledger._books import ChargeTerms
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.noise._mechanisms import DiscreteLaplace

Promise = Literal["exact", "certified"]
"""What is promised of the answer: always exact, or flagged where it is not."""

FIRST_COUNTS = Sensitivity(
    unit="a record of another provider", neighbors="replace_one", l1=2, l2_squared=2, linf=1
)
"""How far the first counts of all providers together move: one bound leaves the k lowest, one
enters."""

SECOND_COUNT = Sensitivity(
    unit="a record of another provider", neighbors="replace_one", l1=1, l2_squared=1, linf=1
)
"""How far one provider's second count moves, given all first counts as they were sent."""

_FIRST_SHARE = Fraction(2, 5)
_DIGITS = 60
_ROUNDING = Decimal(10) ** -40
_PAIR = struct.Struct("<qq")


@dataclass(frozen=True)
class Noise(ABC):
    """Noise on the two counts of each provider in one query.

    Parameters
    ----------
    epsilon : number
        Above 0.
    n_providers, k : int
        Number of providers and k of the query; public.
    failure : number
        A probability in (0, 1).

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    epsilon: Number
    n_providers: int = field(kw_only=True)
    k: int = field(kw_only=True)
    failure: Number = field(default=Fraction(1, 20), kw_only=True)

    def __post_init__(self) -> None:
        if not exact(self.epsilon, "epsilon") > 0:
            raise ValueError(f"expected epsilon above 0, got {self.epsilon!r}")
        if self.n_providers < 1 or self.k < 1:
            raise ValueError(
                f"expected providers and neighbors, got {self.n_providers} and {self.k}"
            )
        if not 0 < exact(self.failure, "failure") < 1:
            raise ValueError(f"expected failure in (0, 1), got {self.failure!r}")

    @property
    @abstractmethod
    def cost(self) -> Guarantee:
        """Return one query's guarantee for one provider.

        It concerns the records of the other providers.
        """

    @property
    @abstractmethod
    def identity(self) -> str:
        """Return a canonical text of the noise and its price."""

    @abstractmethod
    def draws(self, n: int, *, bits: Callable[[int], bytes] = os.urandom) -> list[tuple[int, int]]:
        """Draw noise for ``n`` providers, each independently of the others, shifts included."""

    def draw(self, *, bits: Callable[[int], bytes] = os.urandom) -> tuple[int, int]:
        """Draw noise on the two counts of one provider, shifts included."""
        return self.draws(1, bits=bits)[0]


@dataclass(frozen=True)
class CountNoise(Noise):
    """Noise of the corrected DANN* (``variant="mended"``).

    The first count may come out too low: the second round mends that. It is shifted up all the
    same, since asking for a few objects too many costs less than a long second round. The second
    count is shifted so far that it seldom (``"certified"``) or never (``"exact"``) comes out below
    what is needed.

    Parameters
    ----------
    epsilon : number
        Epsilon of one query, above 0; two fifths pay for the first counts, the rest for the second.
    delta : number
        In (0, 1) for ``promise="exact"``, which cuts noise below 0; 0 for ``"certified"``.
    n_providers, k : int
        Number of providers and k of the query; public.
    promise : {"exact", "certified"}
        See above.
    failure : number
        Under ``"certified"``: how likely any of the providers is asked for too little.

    Raises
    ------
    ValueError
        If a value is out of range.

    Examples
    --------
    >>> CountNoise(1, "1e-6", n_providers=8, k=128).cost
    ApproxDP(epsilon=Fraction(1, 1), delta=Fraction(1, 1000000))
    >>> CountNoise(1, 0, n_providers=8, k=128, promise="certified").second_shift
    7
    """

    delta: Number = 0
    promise: Promise = field(default="exact", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.promise not in ("exact", "certified"):
            raise ValueError(f"expected 'exact' or 'certified', got {self.promise!r}")
        delta = exact(self.delta, "delta")
        if self.promise == "exact" and not 0 < delta < 1:
            raise ValueError(
                f"answers that are always exact need a delta in (0, 1), got {self.delta!r}; give "
                "one such as 1e-6, or take guarantee='certified'"
            )
        if self.promise == "certified" and delta:
            raise ValueError(
                f"certified answers need no delta and would not use it: got {self.delta!r}; leave "
                "it out"
            )
        for name in ("epsilon", "delta", "failure"):  # so that equal laws are equal in all digits
            object.__setattr__(self, name, exact(getattr(self, name), name))

    @property
    def cost(self) -> Guarantee:
        """Return the privacy cost of one query towards one provider."""
        return _settled(self).cost

    @property
    def identity(self) -> str:
        """Return a canonical text of the noise and its price."""
        first = f"{self.first_scale} {self.first_shift}"
        second = f"{self.second_scale} {self.second_shift}"
        return f"mended {self.promise} {self.k} {first} {second} {self.cost!r}"

    @property
    def first_scale(self) -> Fraction:
        """Scale of the noise on a first count."""
        return _settled(self).first.scale

    @property
    def second_scale(self) -> Fraction:
        """Scale of the noise on a second count."""
        return _settled(self).second.scale

    @property
    def first_shift(self) -> int:
        """Return the shift of first counts.

        The noise's scale plus half of the counts' own spread.
        """
        return _settled(self).first_shift

    @property
    def second_shift(self) -> int:
        """Return the shift of second counts.

        ``"exact"``: the least B with P(noise <= -B) <= delta, which is what cutting the sum at 0
        costs. ``"certified"``: the least with P(noise < -B) <= failure / n_providers.
        """
        return _settled(self).second_shift

    def draws(self, n: int, *, bits: Callable[[int], bytes] = os.urandom) -> list[tuple[int, int]]:
        """Draw the same for ``n`` providers, each independently of the others."""
        settled = _settled(self)
        first = settled.first.noise(n, bits=bits) + settled.first_shift
        second = settled.second.noise(n, bits=bits) + settled.second_shift
        if self.promise == "exact":
            second = np.maximum(second, 0)
        return list(zip(first.tolist(), second.tolist(), strict=True))


class _Settled(NamedTuple):
    """Values derived from the parameters of a noise law."""

    first: DiscreteLaplace
    second: DiscreteLaplace
    first_shift: int
    second_shift: int
    cost: Guarantee


@lru_cache(maxsize=64)
def _settled(law: CountNoise) -> _Settled:
    """Compute a law, cached for equal queries."""
    epsilon, delta = exact(law.epsilon, "epsilon"), exact(law.delta, "delta")
    first = DiscreteLaplace(FIRST_COUNTS.l1 / (epsilon * _FIRST_SHARE))
    second = DiscreteLaplace(SECOND_COUNT.l1 / (epsilon * (1 - _FIRST_SHARE)))
    if law.promise == "exact":
        shift = least_shift(second.scale, delta)
    else:
        chance = exact(law.failure, "failure") / law.n_providers
        shift = max(least_shift(second.scale, chance) - 1, 0)
    spent = first.guarantee(FIRST_COUNTS).epsilon + second.guarantee(SECOND_COUNT).epsilon
    return _Settled(
        first,
        second,
        first_shift=math.ceil(first.scale + Fraction(math.sqrt(law.k / law.n_providers)) / 2),
        second_shift=shift,
        cost=ApproxDP(spent, delta) if delta else PureDP(spent),
    )


@dataclass(frozen=True)
class PaperNoise(Noise):
    """Noise of Algorithm 2 as printed (lines 12-13); its guarantee does not hold.

    Each count gets integer Laplace noise of scale 2 / epsilon and is raised by
    -(2 / epsilon) ln(2 lambda). The paper claims epsilon for a query. The first counts of all
    providers together move by 2, and given those the second by 2, so that a query costs at most
    2 epsilon; on small tables it is found to cost 1.5 epsilon.

    Parameters
    ----------
    epsilon : number
        As the paper counts it.
    n_providers, k : int
        Number of providers and k of the query.
    failure : number
        lambda: how likely one count, not one answer, comes out too low.
    """

    @cached_property
    def cost(self) -> PureDP:
        """Return one query's maximum cost: epsilon for each of two counts."""
        return PureDP(2 * exact(self.epsilon, "epsilon"))

    @property
    def identity(self) -> str:
        """Return a canonical text of the noise and its price."""
        return f"as printed {self.k} {self.scale} {self.shift} {self.cost!r}"

    @property
    def scale(self) -> Fraction:
        """Scale of the noise on either count."""
        return self._noise.scale

    @cached_property
    def shift(self) -> int:
        """Return the shift of either count."""
        return max(math.ceil(-float(self.scale) * math.log(2 * exact(self.failure, "failure"))), 0)

    def draws(self, n: int, *, bits: Callable[[int], bytes] = os.urandom) -> list[tuple[int, int]]:
        """Draw the same for ``n`` providers, each independently of the others."""
        drawn = self._noise.noise(2 * n, bits=bits) + self.shift
        return list(zip(drawn[:n].tolist(), drawn[n:].tolist(), strict=True))

    @cached_property
    def _noise(self) -> DiscreteLaplace:
        return DiscreteLaplace(2 / exact(self.epsilon, "epsilon"))


def least_shift(scale: Fraction, chance: Fraction) -> int:
    """Return the least B with P(L <= -B) <= ``chance``.

    B is at least 0 and L is discrete Laplace noise.

    With a = exp(-1 / scale) the probability is a^B / (1 + a). Sixty digits are kept, and a hair is
    given away to their rounding.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        log_a = -Decimal(scale.denominator) / Decimal(scale.numerator)
        wanted = Decimal(chance.numerator) / Decimal(chance.denominator)
        limit = (wanted * (1 + log_a.exp()) * (1 - _ROUNDING)).ln()
        return max(math.ceil(limit / log_a), 0)


def charged_noise(
    ledger: Ledger,
    law: Noise,
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
    law : Noise
        Law of the noise. However its numbers were written, it is the same law.
    query : bytes
        The query.
    user : str
        User of the query.
    bits : callable
        Source of random bytes.

    Returns
    -------
    callable
        Takes the epoch and the providers, returns the noise on both counts of each. Raises
        :class:`~fedneighbors.errors.BudgetExceeded` if the budget of a provider, or of the user,
        does not allow it; nothing was charged then.
    """

    def drawn(lacking: tuple[ChargeTerms, ...]) -> list[bytes]:
        return [_PAIR.pack(*pair) for pair in law.draws(len(lacking), bits=bits)]

    def noise_of(epoch: bytes, providers: tuple[str, ...]) -> Mapping[str, tuple[int, int]]:
        words = query, epoch, law.identity.encode()
        ids = {provider: _release_id(*words, provider.encode()) for provider in providers}
        while True:
            users = ledger.users_of(ids.values())
            terms = [
                ChargeTerms(
                    ids[name], name, users.get(ids[name], user), law.cost, "counts of one search"
                )
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
    terms: list[ChargeTerms],
    user: str,
    drawn: Callable[[tuple[ChargeTerms, ...]], list[bytes]],
) -> list[bytes]:
    """Return the answers to a user.

    Answers that others received before are stored again under the user's ids.

    He is charged before the answers to others are looked up.
    """
    own = [
        each if each.user == user else replace(each, query=_id_of(each, user), user=user)
        for each in terms
    ]
    first = {mine.query: each for mine, each in zip(own, terms, strict=True)}

    def of_others_or_drawn(lacking: tuple[ChargeTerms, ...]) -> list[bytes]:
        asked = [first[each.query] for each in lacking]
        others = [each for each in asked if each.user != user]
        new = tuple(each for each in asked if each.user == user)
        found = dict(zip(others, ledger.release_all(others, drawn), strict=True))
        found |= zip(new, drawn(new), strict=True)
        return [found[each] for each in asked]

    return ledger.release_all(own, of_others_or_drawn)


def _id_of(terms: ChargeTerms, user: str) -> str:
    return _release_id(terms.query.encode(), user.encode())


def _release_id(*words: bytes) -> str:
    """Return an id that is the same for the same words."""
    digest = hashlib.sha256()
    for word in words:
        digest.update(struct.pack("<q", len(word)))
        digest.update(word)
    return f"search {digest.hexdigest()}"
