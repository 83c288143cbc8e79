"""Noise on the counts of DANN*: distributions, costs, and releases charged to a ledger.

A provider's *counts* are the numbers of objects requested from it in the first round, and in both
rounds together (k_i and k_i' in Algorithm 2 of the paper). PAPER.md has the proofs.
"""

import hashlib
import math
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np

from fedneighbors.privacy._guarantees import ApproxDP, Guarantee, Number, PureDP, Sensitivity, exact
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.ledger._tables import ChargeTerms
from fedneighbors.privacy.noise._mechanisms import DiscreteLaplace

Promise = Literal["exact", "certified"]
"""Promise about the answer: always exact, or marked as not exact if it is not certified."""

FIRST_COUNTS = Sensitivity(
    unit="an object of another provider", neighbors="replace_one", l1=2, l2_squared=2, linf=1
)
"""Sensitivity of the first counts of all providers together.

At most one bound leaves the k lowest, and one enters.
"""

SECOND_COUNT = Sensitivity(
    unit="an object of another provider", neighbors="replace_one", l1=1, l2_squared=1, linf=1
)
"""Sensitivity of one provider's second count, given all first counts as sent."""

_FIRST_SHARE = Fraction(2, 5)  # part of epsilon for the first counts
_DIGITS = 60  # precision of min_shift
_ROUNDING = Decimal(10) ** -40  # relative margin, far above the rounding error of 60 digits
_PAIR = struct.Struct("<qq")  # stored form of the noise on both counts of a provider


@dataclass(frozen=True)
class Noise(ABC):
    """Noise on the two counts of each provider in one query.

    Parameters
    ----------
    epsilon : number
        Above 0; its meaning depends on the class.
    n_providers, k : int
        Number of providers and k of the query; public.
    failure : number
        Probability in (0, 1) of a count that is too low; its meaning depends on the class.

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
                f"expected n_providers and k of 1 or more, got {self.n_providers} and {self.k}"
            )
        if not 0 < exact(self.failure, "failure") < 1:
            raise ValueError(f"expected failure in (0, 1), got {self.failure!r}")

    @property
    @abstractmethod
    def cost(self) -> Guarantee:
        """Return the privacy cost of one query towards one provider.

        It protects the objects of the other providers.
        """

    @property
    @abstractmethod
    def identity(self) -> str:
        """Return a canonical text of the distribution and its cost."""

    @abstractmethod
    def draw_all(
        self, n: int, *, bits: Callable[[int], bytes] = os.urandom
    ) -> list[tuple[int, int]]:
        """Draw noise on the two counts of ``n`` providers, shifts included."""

    def draw(self, *, bits: Callable[[int], bytes] = os.urandom) -> tuple[int, int]:
        """Draw noise on the two counts of one provider, shifts included."""
        return self.draw_all(1, bits=bits)[0]


@dataclass(frozen=True)
class CountNoise(Noise):
    """Noise of the corrected DANN* (``variant="mended"``).

    The first count may be too low, because the second round corrects that. It is raised by a shift
    nevertheless, because a few surplus objects cost less than a long second round. The second count
    is raised so far that it is rarely (``"certified"``) or never (``"exact"``) below the required
    number.

    Parameters
    ----------
    epsilon : number
        Epsilon of one query, above 0; two fifths for the first counts, the rest for the second.
    delta : number
        In (0, 1) for ``promise="exact"``, which clamps the sum of shift and noise on the second
        count at 0; 0 for ``"certified"``.
    n_providers, k : int
        Number of providers and k of the query; public.
    promise : {"exact", "certified"}
        Promise about the answer, see above.
    failure : number
        For ``"certified"``: maximum probability that any provider is asked for too few objects.
    has_public_first : bool
        True if first counts are :attr:`public_first` without noise, as in two exchanges. The second
        counts then have all of epsilon.

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
    has_public_first: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.promise not in ("exact", "certified"):
            raise ValueError(f"expected 'exact' or 'certified', got {self.promise!r}")
        delta = exact(self.delta, "delta")
        if self.promise == "exact" and not 0 < delta < 1:
            raise ValueError(
                f"answers that are always exact need a delta in (0, 1), got {self.delta!r}; pass "
                "a delta such as 1e-6, or use guarantee='certified'"
            )
        if self.promise == "certified" and delta:
            raise ValueError(f"certified answers do not use a delta, got {self.delta!r}; omit it")
        for name in ("epsilon", "delta", "failure"):  # equal values get equal representations
            object.__setattr__(self, name, exact(getattr(self, name), name))

    @property
    def cost(self) -> Guarantee:
        """Return the privacy cost of one query towards one provider."""
        return _derive(self).cost

    @property
    def identity(self) -> str:
        """Return a canonical text of the distribution and its cost."""
        first = f"{self.first_scale} {self.first_shift}"
        if self.has_public_first:
            first = f"public {self.public_first}"
        second = f"{self.second_scale} {self.second_shift}"
        return f"mended {self.promise} {self.k} {first} {second} {self.cost!r}"

    @property
    def public_first(self) -> int:
        """Return a first count from public numbers.

        It is the mean of a provider's part of the result, plus about the standard deviation for
        objects that are distributed at random.
        """
        mean = self.k / self.n_providers
        return min(math.ceil(mean + math.sqrt(mean)), self.k)

    @property
    def first_scale(self) -> Fraction:
        """Return the scale of the noise on a first count."""
        return _derive(self).first.scale

    @property
    def second_scale(self) -> Fraction:
        """Return the scale of the noise on a second count."""
        return _derive(self).second.scale

    @property
    def first_shift(self) -> int:
        """Return the shift of first counts.

        It is the scale of the noise plus half the standard deviation of the counts themselves.
        """
        return _derive(self).first_shift

    @property
    def second_shift(self) -> int:
        """Return the shift of second counts.

        ``"exact"``: the smallest B with P(noise <= -B) <= delta, the cost of clamping the sum at 0.
        ``"certified"``: the smallest B with P(noise < -B) <= failure / n_providers.
        """
        return _derive(self).second_shift

    def draw_all(
        self, n: int, *, bits: Callable[[int], bytes] = os.urandom
    ) -> list[tuple[int, int]]:
        """Draw noise on the two counts of ``n`` providers, shifts included."""
        derived = _derive(self)
        first = np.zeros(n, np.int64)
        if not self.has_public_first:
            first = derived.first.noise(n, bits=bits) + derived.first_shift
        second = derived.second.noise(n, bits=bits) + derived.second_shift
        if self.promise == "exact":
            second = np.maximum(second, 0)
        return list(zip(first.tolist(), second.tolist(), strict=True))


class _Derived(NamedTuple):
    """Values derived from the parameters of a noise distribution."""

    first: DiscreteLaplace
    second: DiscreteLaplace
    first_shift: int
    second_shift: int
    cost: Guarantee


@lru_cache(maxsize=64)
def _derive(noise: CountNoise) -> _Derived:
    """Compute the derived values; cached for equal parameters."""
    epsilon, delta = exact(noise.epsilon, "epsilon"), exact(noise.delta, "delta")
    second_share = 1 if noise.has_public_first else 1 - _FIRST_SHARE
    first = DiscreteLaplace(FIRST_COUNTS.l1 / (epsilon * _FIRST_SHARE))
    second = DiscreteLaplace(SECOND_COUNT.l1 / (epsilon * second_share))
    if noise.promise == "exact":
        shift = min_shift(second.scale, delta)
    else:
        chance = exact(noise.failure, "failure") / noise.n_providers
        shift = max(min_shift(second.scale, chance) - 1, 0)
    total = second.guarantee(SECOND_COUNT).epsilon
    if not noise.has_public_first:
        total += first.guarantee(FIRST_COUNTS).epsilon
    return _Derived(
        first,
        second,
        first_shift=math.ceil(first.scale + Fraction(math.sqrt(noise.k / noise.n_providers)) / 2),
        second_shift=shift,
        cost=ApproxDP(total, delta) if delta else PureDP(total),
    )


@dataclass(frozen=True)
class PaperNoise(Noise):
    """Noise of Algorithm 2 as printed (lines 12-13), which costs more than the paper claims.

    Each count gets integer Laplace noise of scale 2 / epsilon and is raised by -(2 / epsilon) ln(2
    lambda). The paper claims a cost of epsilon for a query. The first counts of all providers
    together change by at most 2, and given those the second by at most 2, so a query costs at most
    2 epsilon; enumeration on small tables finds a cost of 1.5 epsilon.

    Parameters
    ----------
    epsilon : number
        Claimed cost of a query.
    n_providers, k : int
        Number of providers and k of the query.
    failure : number
        lambda: probability that a single count is too low. An answer depends on many counts.
    """

    @cached_property
    def cost(self) -> PureDP:
        """Return one query's maximum cost: epsilon for each of two counts."""
        return PureDP(2 * exact(self.epsilon, "epsilon"))

    @property
    def identity(self) -> str:
        """Return a canonical text of the distribution and its cost."""
        return f"as printed {self.k} {self.scale} {self.shift} {self.cost!r}"

    @property
    def scale(self) -> Fraction:
        """Return the scale of the noise on either count."""
        return self._noise.scale

    @cached_property
    def shift(self) -> int:
        """Return the shift of either count."""
        return max(math.ceil(-float(self.scale) * math.log(2 * exact(self.failure, "failure"))), 0)

    def draw_all(
        self, n: int, *, bits: Callable[[int], bytes] = os.urandom
    ) -> list[tuple[int, int]]:
        """Draw noise on the two counts of ``n`` providers, shifts included."""
        noise = self._noise.noise(2 * n, bits=bits) + self.shift
        return list(zip(noise[:n].tolist(), noise[n:].tolist(), strict=True))

    @cached_property
    def _noise(self) -> DiscreteLaplace:
        return DiscreteLaplace(2 / exact(self.epsilon, "epsilon"))


def min_shift(scale: Fraction, chance: Fraction) -> int:
    """Return the smallest B with P(L <= -B) <= ``chance``.

    B is at least 0 and L is discrete Laplace noise.

    With a = exp(-1 / scale) the probability is a^B / (1 + a). It is computed with sixty digits and
    a margin for their rounding.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        log_a = -Decimal(scale.denominator) / Decimal(scale.numerator)
        probability = Decimal(chance.numerator) / Decimal(chance.denominator)
        log_power = (probability * (1 + log_a.exp()) * (1 - _ROUNDING)).ln()
        return max(math.ceil(log_power / log_a), 0)


def noise_source(
    ledger: Ledger,
    noise: Noise,
    *,
    query: bytes,
    bits: Callable[[int], bytes] = os.urandom,
) -> Callable[[bytes, tuple[str, ...]], Mapping[str, tuple[int, int]]]:
    """Return a function that charges for a query's noise and draws it.

    In the broker's ledger, the data set with a provider's name limits what that provider may learn
    about the objects of all others. A query is charged to each of these data sets at the same cost.
    The same query in the same epoch gets the same noise at no further cost, so that repetition
    reveals nothing new. When the objects of a provider change, so does the epoch, and new noise is
    drawn and charged.

    Parameters
    ----------
    ledger : Ledger
        Ledger with a budget for each provider.
    noise : Noise
        Distribution of the noise. Parameters of equal value, such as 1 and "1.0", are the same.
    query : bytes
        The query.
    bits : callable
        Function that returns a number of random bytes.

    Returns
    -------
    callable
        Function from the epoch and the providers to the noise on both counts of each. Raises
        :class:`~fedneighbors.errors.BudgetExceeded` if the budget of a provider is too small;
        nothing is charged in this case.
    """

    def draw(missing: tuple[ChargeTerms, ...]) -> list[bytes]:
        return [_PAIR.pack(*pair) for pair in noise.draw_all(len(missing), bits=bits)]

    def noise_of(epoch: bytes, providers: tuple[str, ...]) -> Mapping[str, tuple[int, int]]:
        parts = query, epoch, noise.identity.encode()
        terms = [
            ChargeTerms(
                f"search {hash_parts([*parts, name.encode()]).hex()}",
                name,
                "search",
                noise.cost,
                "counts of one search",
            )
            for name in providers
        ]
        answers = ledger.release_all(terms, draw)
        return dict(zip(providers, map(_PAIR.unpack, answers), strict=True))

    return noise_of


def hash_parts(parts: Iterable[bytes]) -> bytes:
    """Return a digest of byte strings and their lengths."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
