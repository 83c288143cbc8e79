"""What the private steps of one client cost, and how much noise keeps them within a budget.

Steps are counted by the accountant of Opacus. A step draws each row by itself with a fixed chance
(Poisson sampling), bounds what the row adds, and adds Gaussian noise: the subsampled Gaussian
mechanism, whose steps compose in Renyi divergence [1]_. Neighbors are tables with one row more or
less.

References
----------
.. [1] Mironov, Talwar and Zhang, "Renyi Differential Privacy of the Sampled Gaussian Mechanism",
   2019.
"""

import math
import warnings
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from fedneighbors.errors import MissingExtraError
from fedneighbors.privacy._guarantees import ApproxDP, PureDP, exact
from fedneighbors.privacy._policy import Privacy

TOLERANCE = 0.01
"""Share of epsilon that the search for a noise multiplier may leave unused."""

RATE_STEPS = 1 << 24
"""A uniform number of torch is a multiple of one in so many; so are the sample rates."""

ORDERS = (*range(2, 64), 64, 80, 96, 128, 192, 256, 384, 512, 1024)
"""Orders of the divergence among which the best is taken.

Whole numbers: others take Opacus many times as long and gain nothing up to an epsilon of 20."""

_DIGITS = 10**6
_RATE_BITS = 4


def needs_opacus() -> None:
    """Raise :class:`MissingExtraError` if Opacus is not installed."""
    try:
        import opacus  # noqa: F401
    except ImportError:
        raise MissingExtraError("opacus", "dpsgd") from None


@dataclass(frozen=True)
class Budget:
    """How one client's budget is divided; the two parts add up to the whole.

    Parameters
    ----------
    counts : PureDP
        For the noised class counts.
    steps : ApproxDP
        For all steps of training.
    """

    counts: PureDP
    steps: ApproxDP

    @classmethod
    def of(cls, privacy: Privacy) -> "Budget":
        """Divide as ``constants_share`` says; all of delta goes to the steps."""
        share = exact(privacy.constants_share, "constants_share")
        epsilon = exact(privacy.epsilon, "epsilon")
        delta = exact(privacy.delta, "delta")
        return cls(PureDP(share * epsilon), ApproxDP((1 - share) * epsilon, delta))


@dataclass(frozen=True)
class StepPlan:
    """The steps of one client in one round, and what all its rounds cost together.

    Parameters
    ----------
    sample_rate : float
        Chance of each row to be in a step; a multiple of 2**-24, so that torch's comparison of a
        uniform float32 with it has exactly this chance.
    batch_size : int
        Rows by which the sum of a step is divided; a function of what is public.
    n_steps : int
        Steps of a round.
    n_rounds : int
        Rounds that the client takes part in.
    noise_multiplier : float
        Deviation of the noise over the bound on a row's gradient.
    cost : ApproxDP
        Of all steps, rounded up to six digits.
    """

    sample_rate: float
    batch_size: int
    n_steps: int
    n_rounds: int
    noise_multiplier: float
    cost: ApproxDP


def plan_of(
    n_rows: int, batch_size: int, *, epochs: int, n_rounds: int, allowed: ApproxDP
) -> StepPlan:
    """Return the steps of a client that is said to train on so many rows.

    Parameters
    ----------
    n_rows : int
        What it announced, 1 or more; never its exact number.
    batch_size : int
        Rows that a step has in the mean.
    epochs : int
        Passes in a round.
    n_rounds : int
        Rounds that it takes part in, 1 or more.
    allowed : ApproxDP
        For all of them; delta above 0.

    Raises
    ------
    ValueError
        If no noise is enough.
    """
    rate = _rounded_rate(min(batch_size / n_rows, 1.0))
    n_steps = epochs * math.ceil(1 / rate)
    noise, epsilon = _calibrated(rate, n_steps * n_rounds, allowed)
    rounded = Fraction(math.ceil(epsilon * _DIGITS), _DIGITS)
    return StepPlan(
        sample_rate=rate,
        batch_size=min(batch_size, n_rows),
        n_steps=n_steps,
        n_rounds=n_rounds,
        noise_multiplier=noise,
        cost=ApproxDP(min(rounded, allowed.epsilon), allowed.delta),
    )


def _rounded_rate(rate: float) -> float:
    """Return a rate that torch draws exactly: rounded up to four binary digits.

    So few that clients of about the same size share one search for their noise.
    """
    _, exponent = math.frexp(rate)
    places = min(_RATE_BITS - exponent, round(math.log2(RATE_STEPS)))
    return min(math.ldexp(math.ceil(math.ldexp(rate, places)), -places), 1.0)


def accountant() -> Any:
    """Return a new accountant of Opacus, by Renyi divergence."""
    needs_opacus()
    from opacus.accountants import RDPAccountant

    return RDPAccountant()


@lru_cache(maxsize=1024)
def _calibrated(rate: float, n_steps: int, allowed: ApproxDP) -> tuple[float, float]:
    """Return a noise multiplier and the epsilon that Opacus finds for it, at most the allowed."""
    needs_opacus()
    from opacus.accountants.utils import get_noise_multiplier

    target = math.nextafter(float(allowed.epsilon), 0.0)
    delta = math.nextafter(float(allowed.delta), 0.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order is the")  # less tight, yet valid
        try:
            noise = get_noise_multiplier(
                target_epsilon=target,
                target_delta=delta,
                sample_rate=rate,
                steps=n_steps,
                accountant="rdp",
                epsilon_tolerance=TOLERANCE * target,
                alphas=ORDERS,
            )
        except ValueError:
            raise ValueError(
                f"no noise keeps {n_steps} steps within {allowed}; raise epsilon, or lower "
                "n_rounds or local_epochs"
            ) from None
        witness = accountant()
        witness.history = [(noise, rate, n_steps)]
        return float(noise), float(witness.get_epsilon(delta, alphas=ORDERS))
