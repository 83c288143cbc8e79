"""DP-SGD: Poisson-sampled rows, clipped gradients, Gaussian noise on the sum.

Gradients of single rows, their cut, and the noise are those of Opacus. What it does not do is done
here: a row whose gradient is not finite counts as zero, since no factor can bound it, and the
generator is filled with random words of the operating system.

Steps are counted by the accountant of Opacus. A step draws each row by itself with a fixed chance
(Poisson sampling), bounds what the row adds, and adds Gaussian noise: the subsampled Gaussian
mechanism, whose steps compose in Renyi divergence [1]_. Neighbors are tables with one row more or
less.

References
----------
.. [1] Mironov, Talwar and Zhang, "Renyi Differential Privacy of the Sampled Gaussian Mechanism",
   2019.
"""

import copy
import math
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from fedneighbors._lazy import optional_module
from fedneighbors.neural._network import Network, State
from fedneighbors.neural._schedule import Regime
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


@dataclass(frozen=True)
class Budget:
    """Split of one client's budget into two parts that compose to the whole.

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
    """Steps of one client per round, and the cost of all its rounds.

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
        Cost of all steps, rounded up to six digits.
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
    """Return the steps of a client with so many declared rows.

    Parameters
    ----------
    n_rows : int
        Announced number of rows, 1 or more; never the exact number.
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
    """Round a rate up to four binary digits.

    torch draws such rates exactly.

    So few that clients of about the same size share one search for their noise.
    """
    _, exponent = math.frexp(rate)
    places = min(_RATE_BITS - exponent, round(math.log2(RATE_STEPS)))
    return min(math.ldexp(math.ceil(math.ldexp(rate, places)), -places), 1.0)


def accountant() -> Any:
    """Return a new accountant of Opacus, by Renyi divergence."""
    return optional_module("opacus.accountants", "dpsgd").RDPAccountant()


@lru_cache(maxsize=1024)
def _calibrated(rate: float, n_steps: int, allowed: ApproxDP) -> tuple[float, float]:
    """Return a noise multiplier and its epsilon, within the allowed one.

    Opacus computes the epsilon.
    """
    get_noise_multiplier = optional_module("opacus.accountants.utils", "dpsgd").get_noise_multiplier
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


_FIRST_WORD, _N_WORDS, _WORD_BYTES = 24, 624, 8
"""Where torch keeps the words of its Mersenne twister among the bytes of a state."""


def fresh_generator() -> torch.Generator:
    """Return a generator seeded from the operating system.

    Its state has 19,968 bits.

    ``manual_seed`` keeps 32 bits of a seed, few enough to try all of them.
    """
    generator = torch.Generator()
    state = generator.get_state()
    words = state[_FIRST_WORD : _FIRST_WORD + _N_WORDS * _WORD_BYTES].view(_N_WORDS, _WORD_BYTES)
    words[:, :4] = torch.frombuffer(bytearray(os.urandom(4 * _N_WORDS)), dtype=torch.uint8).view(
        _N_WORDS, 4
    )
    generator.set_state(state)
    return generator


def refuse_unfit(network: Network, x: Tensor) -> None:
    """Raise unless a network has separate gradients for rows.

    Parameters
    ----------
    network : Network
        Network to train.
    x : Tensor of shape (n_rows, ...)
        Rows of the shape that it takes; their values are not looked at.

    Raises
    ------
    MissingExtraError
        If Opacus is not installed.
    ValueError
        If a layer mixes rows, as batch normalization does, or Opacus knows no gradients of it.
    """
    validators = optional_module("opacus.validators", "dpsgd")
    module = copy.deepcopy(network.module).train()
    wrong = [
        str(error).split(". ")[0]
        for error in validators.ModuleValidator.validate(module, strict=False)
    ]
    if wrong:
        raise ValueError(
            f"the model cannot be trained under privacy: {'; '.join(sorted(set(wrong)))}. Take "
            "layers that see one row at a time: GroupNorm or LayerNorm for BatchNorm"
        )
    try:
        wrapped, _ = _wrapped(module, Regime(), bound=1.0, noise=1.0, batch_size=1)
        some = torch.zeros((2, *x.shape[1:]), dtype=x.dtype)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            _backward(wrapped(some), torch.zeros(2, dtype=torch.int64))
        named = module.named_parameters()
        lost = [name for name, p in named if getattr(p, "grad_sample", None) is None]
    except (NotImplementedError, RuntimeError) as error:
        raise ValueError(f"the model cannot be trained under privacy: {error}") from None
    if lost:
        raise ValueError(
            f"the model cannot be trained under privacy: parameters {lost[:5]} do not take part "
            "in its output; leave them out"
        )


def stepped(
    network: Network,
    start: State,
    x: Tensor,
    y: Tensor,
    *,
    plan: StepPlan,
    regime: Regime,
    bound: float,
    generator: torch.Generator | None = None,
) -> tuple[State, Any]:
    """Return a client's weights after one private round, and its counts.

    Parameters
    ----------
    network : Network
        Network to train.
    start : State
        Initial weights.
    x, y : Tensor
        The client's rows and labels; there may be none.
    plan : StepPlan
        Chance of each row, number of steps, noise.
    regime : Regime
        Learning rate, momentum and decay; its epochs and batch size are those of the plan.
    bound : float
        Largest length of a row's gradient.
    generator : torch.Generator, optional
        Generator of rows and noise. Anything but a fresh one is for tests.

    Returns
    -------
    state : State
        Parameters of the last step; buffers as they came.
    counted : accountant
        Accountant of Opacus, told of every step by the optimizer.
    """
    chance = fresh_generator() if generator is None else generator
    module = copy.deepcopy(network.module).train()
    module.load_state_dict({name: start[name] for name in module.state_dict()})
    wrapped, optimizer = _wrapped(
        module, regime, bound=bound, noise=plan.noise_multiplier, batch_size=plan.batch_size
    )
    optimizer.generator = chance
    counted = accountant()
    optimizer.attach_step_hook(counted.get_optimizer_hook_fn(sample_rate=plan.sample_rate))
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():  # for example of dropout
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        for _ in range(plan.n_steps):
            drawn = torch.rand(len(x), generator=chance) < plan.sample_rate
            optimizer.zero_grad()
            _backward(wrapped(x[drawn]), y[drawn])
            _silence_unbounded(module.parameters())
            optimizer.step()
    named = dict(module.named_parameters())
    return {k: named[k].detach().clone() if k in named else v for k, v in start.items()}, counted


def _wrapped(
    module: nn.Module, regime: Regime, *, bound: float, noise: float, batch_size: int
) -> tuple[Any, Any]:
    """Return a module with per-row gradients and its noisy optimizer."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(module, batch_first=True, loss_reduction="mean")
    descent = torch.optim.SGD(
        wrapped.parameters(),
        lr=regime.learning_rate,
        momentum=regime.momentum,
        weight_decay=regime.weight_decay,
    )
    optimizer = DPOptimizer(
        descent,
        noise_multiplier=noise,
        max_grad_norm=bound,
        expected_batch_size=batch_size,
        loss_reduction="mean",
        secure_mode=True,  # sums of four draws: noise whose last bits do not tell what it was on
    )
    return wrapped, optimizer


def _backward(scores: Tensor, y: Tensor) -> None:
    torch.autograd.backward(nn.functional.cross_entropy(scores, y))


def _silence_unbounded(parameters: Iterable[nn.Parameter]) -> None:
    """Set non-finite row gradients to zero.

    Clipping would make them NaN.
    """
    found = (getattr(p, "grad_sample", None) for p in parameters)
    samples = [sample for sample in found if sample is not None]
    finite = torch.stack([torch.isfinite(s.flatten(1)).all(dim=1) for s in samples]).all(dim=0)
    if not finite.all():
        for sample in samples:
            sample[~finite] = 0
