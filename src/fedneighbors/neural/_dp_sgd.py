"""DP-SGD: Poisson sampling of rows, clipped gradients, Gaussian noise on their sum.

Opacus computes the gradient of each row's loss (*per-sample gradients*), clips these gradients and
adds noise. In addition, this module sets a per-sample gradient to zero if it contains NaN or
infinity, which clipping would turn into NaN, and fills the state of the random generator with
random bytes from the operating system.

The accountant of Opacus computes the cost of the steps. A step draws each row independently with a
fixed probability (Poisson sampling), bounds the contribution of a row, and adds Gaussian noise.
This is the subsampled Gaussian mechanism, whose steps compose in Renyi divergence [1]_. Neighboring
tables differ by one row, added or removed.

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
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedneighbors._lazy import optional_module
from fedneighbors._typing import Array
from fedneighbors.neural._network import Network, State
from fedneighbors.neural._schedule import Regime
from fedneighbors.privacy._guarantees import ApproxDP, PureDP, exact
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.audit._row_mixing import mixes_rows

TOLERANCE = 0.01
"""Fraction of epsilon that the search for a noise multiplier may leave unused."""

RATE_DENOMINATOR = 1 << 24
"""Sample rates are multiples of 1 / RATE_DENOMINATOR, as torch's uniform numbers are."""

ORDERS = (*range(2, 64), 64, 80, 96, 128, 192, 256, 384, 512, 1024)
"""Renyi orders over which the accountant minimizes epsilon.

Only integers: Opacus takes many times as long for fractional orders, which do not give a lower
epsilon for budgets up to 20."""

_COST_DENOMINATOR = 10**6
"""Costs are rounded up to multiples of 1 / _COST_DENOMINATOR, so that they are short fractions."""

_RATE_BITS = 4
"""Number of significant bits of a sample rate; see :func:`_round_rate`."""


@dataclass(frozen=True)
class Budget:
    """The two parts of one client's privacy budget; they add up to the budget.

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
        """Split a budget: ``constants_share`` of epsilon for counts, the rest for steps.

        In this method, ``constants_share`` is the share of the class counts. The steps get all of
        delta.
        """
        share = exact(privacy.constants_share, "constants_share")
        epsilon = exact(privacy.epsilon, "epsilon")
        delta = exact(privacy.delta, "delta")
        return cls(PureDP(share * epsilon), ApproxDP((1 - share) * epsilon, delta))


@dataclass(frozen=True)
class StepPlan:
    """Private training steps of one client, and the cost of all its rounds.

    Parameters
    ----------
    sample_rate : float
        Probability that a step includes a given row; a multiple of 2**-24, so that torch's
        comparison with a uniform float32 has exactly this probability.
    batch_size : int
        Divisor of a step's noisy sum of gradients. It depends on the noisy number of rows, never on
        the exact one.
    n_steps : int
        Steps per round.
    n_rounds : int
        Number of rounds in which the client trains.
    noise_multiplier : float
        Standard deviation of the noise, divided by the norm to which per-sample gradients are
        clipped.
    cost : ApproxDP
        Cost of all steps of all rounds; epsilon is rounded up to six decimal places, but is at most
        the budget.
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
    """Return a client's steps for a noisy number of rows.

    Parameters
    ----------
    n_rows : int
        Number of training rows, 1 or more, computed from the noisy class counts; never the exact
        number.
    batch_size : int
        Mean number of rows per step, before the sample rate is rounded up.
    epochs : int
        Minimum of the expected number of passes over the rows per round.
    n_rounds : int
        Number of rounds in which the client trains, 1 or more.
    allowed : ApproxDP
        Budget of all rounds; delta above 0.

    Raises
    ------
    ValueError
        If no noise multiplier meets the budget.
    """
    rate = _round_rate(min(batch_size / n_rows, 1.0))
    n_steps = epochs * math.ceil(1 / rate)
    noise, epsilon = _calibrate(rate, n_steps * n_rounds, allowed)
    rounded = Fraction(math.ceil(epsilon * _COST_DENOMINATOR), _COST_DENOMINATOR)
    return StepPlan(
        sample_rate=rate,
        batch_size=min(batch_size, n_rows),
        n_steps=n_steps,
        n_rounds=n_rounds,
        noise_multiplier=noise,
        cost=ApproxDP(min(rounded, allowed.epsilon), allowed.delta),
    )


def _round_rate(rate: float) -> float:
    """Round a rate up to four significant bits.

    The result is also a multiple of 2**-24. So are torch's uniform float32 numbers: rows are drawn
    with exactly this probability.

    As there are few such rates, clients of similar size share one search for the noise, which is
    cached.
    """
    _, exponent = math.frexp(rate)
    places = min(_RATE_BITS - exponent, round(math.log2(RATE_DENOMINATOR)))
    return min(math.ldexp(math.ceil(math.ldexp(rate, places)), -places), 1.0)


def new_accountant() -> Any:
    """Return a new Renyi accountant of Opacus."""
    return optional_module("opacus.accountants", "dpsgd").RDPAccountant()


@lru_cache(maxsize=1024)
def _calibrate(rate: float, n_steps: int, allowed: ApproxDP) -> tuple[float, float]:
    """Return a noise multiplier and the epsilon of all steps with it."""
    get_noise_multiplier = optional_module("opacus.accountants.utils", "dpsgd").get_noise_multiplier
    target = math.nextafter(float(allowed.epsilon), 0.0)
    delta = math.nextafter(float(allowed.delta), 0.0)
    with warnings.catch_warnings():
        # If the best order is the first or last, epsilon is less tight but valid.
        warnings.filterwarnings("ignore", message="Optimal order is the")
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
                f"no noise multiplier keeps the cost of {n_steps} steps within {allowed}; raise "
                "epsilon, or lower n_rounds or local_epochs"
            ) from None
        accountant = new_accountant()
        accountant.history = [(noise, rate, n_steps)]
        return float(noise), float(accountant.get_epsilon(delta, alphas=ORDERS))


_FIRST_WORD, _N_WORDS, _WORD_BYTES = 24, 624, 8
"""Offset, number and size in bytes of the Mersenne twister's words in a torch generator's state."""


def fresh_generator() -> torch.Generator:
    """Return a generator with random state bits from the operating system.

    All 19,968 bits are random. ``manual_seed`` uses only 32 bits of a seed, so that an attacker
    could try all seeds.
    """
    generator = torch.Generator()
    state = generator.get_state()
    words = state[_FIRST_WORD : _FIRST_WORD + _N_WORDS * _WORD_BYTES].view(_N_WORDS, _WORD_BYTES)
    words[:, :4] = torch.frombuffer(bytearray(os.urandom(4 * _N_WORDS)), dtype=torch.uint8).view(
        _N_WORDS, 4
    )
    generator.set_state(state)
    return generator


@lru_cache(maxsize=8)  # all clients of a simulation share a network
def check_private(network: Network, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise unless the network can be trained with DP-SGD.

    Parameters
    ----------
    network : Network
        Network to train.
    shape : tuple of int
        Shape of a row.
    dtype : torch.dtype
        Type of the rows.

    Raises
    ------
    MissingExtraError
        If Opacus is not installed.
    ValueError
        If the gradient of a row depends on other rows of the batch, on the size of the batch or on
        earlier batches, if Opacus does not support a layer, or if a parameter does not affect the
        output.
    """
    validators = optional_module("opacus.validators", "dpsgd")
    module = copy.deepcopy(network.module).train()
    errors = [
        str(error).split(". ")[0]
        for error in validators.ModuleValidator.validate(module, strict=False)
    ]
    if errors:
        raise ValueError(
            f"the model cannot be trained with DP-SGD: {'; '.join(sorted(set(errors)))}. Use "
            "layers that process each row separately: GroupNorm or LayerNorm instead of BatchNorm"
        )
    try:
        wrapped, _ = _wrap(module, Regime(), bound=1.0, noise=1.0, batch_size=1)
        gradients = partial(_sample_gradients, wrapped, dtype=dtype)
        gradients(np.zeros((2, *shape)), 0)
        named = module.named_parameters()
        unused = [name for name, p in named if getattr(p, "grad_sample", None) is None]
        n_values = None if dtype.is_floating_point else network.n_tokens or 2
        is_mixing = not unused and mixes_rows(gradients, shape, n_values=n_values)
    except (NotImplementedError, RuntimeError) as error:
        raise ValueError(f"the model cannot be trained with DP-SGD: {error}") from None
    if is_mixing:
        raise ValueError(
            "the model cannot be trained with DP-SGD: the gradient of a row depends on other rows. "
            "Remove layers from its forward() that combine rows of a batch or remember earlier rows"
        )
    if unused:
        raise ValueError(
            f"the model cannot be trained with DP-SGD: parameters {unused[:5]} do not affect its "
            "output; remove them"
        )


def _sample_gradients(wrapped: Any, rows: Array, seed: int, *, dtype: torch.dtype) -> Array:
    """Return the per-sample gradients of all used parameters, one row per sample."""
    for parameter in wrapped.parameters():
        parameter.grad_sample = None
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        torch.manual_seed(seed)  # dropout draws from the global generator
        _backward(wrapped(torch.from_numpy(rows).to(dtype)), torch.zeros(len(rows)).long())
    gradients = [p.grad_sample for p in wrapped.parameters() if p.grad_sample is not None]
    return torch.cat([gradient.flatten(1) for gradient in gradients], dim=1).detach().numpy()


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
    """Return a client's weights after one private round, and the accountant.

    Parameters
    ----------
    network : Network
        Network to train.
    start : State
        Initial weights.
    x, y : Tensor
        The client's rows and labels; may be empty.
    plan : StepPlan
        Sample rate, number of steps, divisor and noise.
    regime : Regime
        Learning rate, momentum and weight decay; other settings are not used.
    bound : float
        Norm to which per-sample gradients are clipped.
    generator : torch.Generator, optional
        Random generator of the sampled rows and of the noise. Pass one in tests only; by default, a
        new one from :func:`fresh_generator`.

    Returns
    -------
    state : State
        Parameters after the last step; buffers unchanged.
    accountant : accountant
        Accountant of Opacus that recorded each step of the optimizer.
    """
    generator = fresh_generator() if generator is None else generator
    module = copy.deepcopy(network.module).train()
    module.load_state_dict({name: start[name] for name in module.state_dict()})
    wrapped, optimizer = _wrap(
        module, regime, bound=bound, noise=plan.noise_multiplier, batch_size=plan.batch_size
    )
    optimizer.generator = generator
    accountant = new_accountant()
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=plan.sample_rate))
    # dropout draws from the global generator; fork_rng restores its state afterwards
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        for _ in range(plan.n_steps):
            sampled = torch.rand(len(x), generator=generator) < plan.sample_rate
            optimizer.zero_grad()
            _backward(wrapped(x[sampled]), y[sampled])
            _zero_nonfinite(module.parameters())
            optimizer.step()
    named = dict(module.named_parameters())
    return {k: named[k].detach().clone() if k in named else v for k, v in start.items()}, accountant


def _wrap(
    module: nn.Module, regime: Regime, *, bound: float, noise: float, batch_size: int
) -> tuple[Any, Any]:
    """Return a module with per-sample gradients and its noisy optimizer."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(module, batch_first=True, loss_reduction="mean")
    sgd = torch.optim.SGD(
        wrapped.parameters(),
        lr=regime.learning_rate,
        momentum=regime.momentum,
        weight_decay=regime.weight_decay,
    )
    optimizer = DPOptimizer(
        sgd,
        noise_multiplier=noise,
        max_grad_norm=bound,
        expected_batch_size=batch_size,
        loss_reduction="mean",
        # adds up Gaussian draws, so that rounding does not reveal the value without noise
        secure_mode=True,
    )
    return wrapped, optimizer


def _backward(scores: Tensor, y: Tensor) -> None:
    torch.autograd.backward(nn.functional.cross_entropy(scores, y))


def _zero_nonfinite(parameters: Iterable[nn.Parameter]) -> None:
    """Set a row's gradient to zero if any component is not finite.

    Clipping would put NaN into the sum of the gradients. The work is the same for all rows.
    """
    optional = (getattr(p, "grad_sample", None) for p in parameters)
    gradients = [gradient for gradient in optional if gradient is not None]
    finite = torch.stack([torch.isfinite(g.flatten(1)).all(dim=1) for g in gradients]).all(dim=0)
    for gradient in gradients:
        gradient.masked_fill_(~finite.view(-1, *[1] * (gradient.ndim - 1)), 0)
