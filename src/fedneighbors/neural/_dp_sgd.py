"""DP-SGD: Poisson-sampled rows, clipped gradients, Gaussian noise on the sum.

Opacus computes the gradients of single rows, clips them and adds noise. This module adds two
things: a row whose gradient is not finite counts as zero, because no factor can bound it, and the
generator's state is filled with random words of the operating system.

The accountant of Opacus counts the steps. A step draws each row independently with a fixed
probability (Poisson sampling), bounds the contribution of a row, and adds Gaussian noise: the
subsampled Gaussian mechanism, whose steps compose in Renyi divergence [1]_. Neighboring tables
differ by one row, added or removed.

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
"""Fraction of epsilon that the search for a noise multiplier may leave unused."""

RATE_STEPS = 1 << 24
"""Steps of torch's uniform numbers between 0 and 1; sample rates are multiples of such a step."""

ORDERS = (*range(2, 64), 64, 80, 96, 128, 192, 256, 384, 512, 1024)
"""Renyi orders over which the accountant minimizes epsilon.

Integers only: Opacus takes many times as long for others and gains nothing up to epsilon 20."""

_DIGITS = 10**6
_RATE_BITS = 4


@dataclass(frozen=True)
class Budget:
    """Split of one client's budget into two parts that compose to the whole.

    Parameters
    ----------
    counts : PureDP
        Budget of the noisy class counts.
    steps : ApproxDP
        Budget of all training steps.
    """

    counts: PureDP
    steps: ApproxDP

    @classmethod
    def of(cls, privacy: Privacy) -> "Budget":
        """Split by ``constants_share``; all of delta goes to the steps."""
        share = exact(privacy.constants_share, "constants_share")
        epsilon = exact(privacy.epsilon, "epsilon")
        delta = exact(privacy.delta, "delta")
        return cls(PureDP(share * epsilon), ApproxDP((1 - share) * epsilon, delta))


@dataclass(frozen=True)
class StepPlan:
    """Training steps of one client per round, and the cost of all its rounds.

    Parameters
    ----------
    sample_rate : float
        Probability of each row to be in a step; a multiple of 2**-24, so that torch's comparison
        with a uniform float32 has exactly this probability.
    batch_size : int
        Divisor of a step's sum; a function of public facts.
    n_steps : int
        Steps per round.
    n_rounds : int
        Rounds with this client.
    noise_multiplier : float
        Standard deviation of the noise divided by the bound on a row's gradient.
    cost : ApproxDP
        Cost of all steps, rounded up to six digits.
    """

    sample_rate: float
    batch_size: int
    n_steps: int
    n_rounds: int
    noise_multiplier: float
    cost: ApproxDP


def plan_steps(
    n_rows: int, batch_size: int, *, epochs: int, n_rounds: int, allowed: ApproxDP
) -> StepPlan:
    """Return a client's steps for a declared number of rows.

    Parameters
    ----------
    n_rows : int
        Announced number of rows, 1 or more; never the exact number.
    batch_size : int
        Mean number of rows per step.
    epochs : int
        Passes per round.
    n_rounds : int
        Rounds with this client, 1 or more.
    allowed : ApproxDP
        Budget of all rounds; delta above 0.

    Raises
    ------
    ValueError
        If no amount of noise meets the budget.
    """
    rate = _round_rate(min(batch_size / n_rows, 1.0))
    n_steps = epochs * math.ceil(1 / rate)
    noise, epsilon = _calibrate(rate, n_steps * n_rounds, allowed)
    rounded = Fraction(math.ceil(epsilon * _DIGITS), _DIGITS)
    return StepPlan(
        sample_rate=rate,
        batch_size=min(batch_size, n_rows),
        n_steps=n_steps,
        n_rounds=n_rounds,
        noise_multiplier=noise,
        cost=ApproxDP(min(rounded, allowed.epsilon), allowed.delta),
    )


def _round_rate(rate: float) -> float:
    """Round a rate up to four binary digits.

    torch draws such rates exactly. With so few digits, clients of similar size share one search for
    their noise.
    """
    _, exponent = math.frexp(rate)
    places = min(_RATE_BITS - exponent, round(math.log2(RATE_STEPS)))
    return min(math.ldexp(math.ceil(math.ldexp(rate, places)), -places), 1.0)


def new_accountant() -> Any:
    """Return a new Renyi accountant of Opacus."""
    return optional_module("opacus.accountants", "dpsgd").RDPAccountant()


@lru_cache(maxsize=1024)
def _calibrate(rate: float, n_steps: int, allowed: ApproxDP) -> tuple[float, float]:
    """Return a noise multiplier and its epsilon, within the allowed one."""
    get_noise_multiplier = optional_module("opacus.accountants.utils", "dpsgd").get_noise_multiplier
    target = math.nextafter(float(allowed.epsilon), 0.0)
    delta = math.nextafter(float(allowed.delta), 0.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order is the")  # less tight, but valid
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
        witness = new_accountant()
        witness.history = [(noise, rate, n_steps)]
        return float(noise), float(witness.get_epsilon(delta, alphas=ORDERS))


_FIRST_WORD, _N_WORDS, _WORD_BYTES = 24, 624, 8
"""Position of the Mersenne twister's words among the bytes of a torch generator state."""


def fresh_generator() -> torch.Generator:
    """Return a generator seeded from the operating system.

    All 19,968 bits of its state are random. ``manual_seed`` uses 32 bits of a seed, which can be
    found by trying all of them.
    """
    generator = torch.Generator()
    state = generator.get_state()
    words = state[_FIRST_WORD : _FIRST_WORD + _N_WORDS * _WORD_BYTES].view(_N_WORDS, _WORD_BYTES)
    words[:, :4] = torch.frombuffer(bytearray(os.urandom(4 * _N_WORDS)), dtype=torch.uint8).view(
        _N_WORDS, 4
    )
    generator.set_state(state)
    return generator


def check_private(network: Network, x: Tensor) -> None:
    """Raise unless a network has separate gradients for each row.

    Parameters
    ----------
    network : Network
        Network to train.
    x : Tensor of shape (n_rows, ...)
        Rows of the expected shape; their values are not used.

    Raises
    ------
    MissingExtraError
        If Opacus is not installed.
    ValueError
        If a layer mixes rows, such as batch normalization, or Opacus does not support it.
    """
    validators = optional_module("opacus.validators", "dpsgd")
    module = copy.deepcopy(network.module).train()
    wrong = [
        str(error).split(". ")[0]
        for error in validators.ModuleValidator.validate(module, strict=False)
    ]
    if wrong:
        raise ValueError(
            f"the model cannot be trained under privacy: {'; '.join(sorted(set(wrong)))}. Use "
            "layers that process each row separately: GroupNorm or LayerNorm instead of BatchNorm"
        )
    try:
        wrapped, _ = _wrap(module, Regime(), bound=1.0, noise=1.0, batch_size=1)
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
            f"the model cannot be trained under privacy: parameters {lost[:5]} do not affect its "
            "output; remove them"
        )


def train_private(
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
        The client's rows and labels; may be empty.
    plan : StepPlan
        Sample rate, number of steps, noise.
    regime : Regime
        Learning rate, momentum and decay; epochs and batch size come from the plan.
    bound : float
        Maximum norm of a row's gradient.
    generator : torch.Generator, optional
        Generator of rows and noise. Pass one in tests only; by default, a new generator.

    Returns
    -------
    state : State
        Parameters after the last step; buffers unchanged.
    counted : accountant
        Accountant of Opacus with all steps recorded by the optimizer.
    """
    chance = fresh_generator() if generator is None else generator
    module = copy.deepcopy(network.module).train()
    module.load_state_dict({name: start[name] for name in module.state_dict()})
    wrapped, optimizer = _wrap(
        module, regime, bound=bound, noise=plan.noise_multiplier, batch_size=plan.batch_size
    )
    optimizer.generator = chance
    counted = new_accountant()
    optimizer.attach_step_hook(counted.get_optimizer_hook_fn(sample_rate=plan.sample_rate))
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():  # dropout draws from it
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        for _ in range(plan.n_steps):
            drawn = torch.rand(len(x), generator=chance) < plan.sample_rate
            optimizer.zero_grad()
            _backward(wrapped(x[drawn]), y[drawn])
            _silence_unbounded(module.parameters())
            optimizer.step()
    named = dict(module.named_parameters())
    return {k: named[k].detach().clone() if k in named else v for k, v in start.items()}, counted


def _wrap(
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
        secure_mode=True,  # sum of four draws: the last bits do not reveal the value without noise
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
