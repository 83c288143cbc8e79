import numpy as np
import torch
from torch.nn import functional

from fedneighbors.methods.fedpnn.synthesis._encoding import Layout
from fedneighbors.methods.fedpnn.synthesis._generation import TrainedGenerator
from fedneighbors.methods.fedpnn.synthesis._training import Critic, Generator

LAYOUT = Layout(widths=(3, 2, 3), scalars=(0, 2))


def draw_noise(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def compute_scores(critic, packs, rng):
    """Score packs with plain operations, for autograd."""
    state = packs
    for index, layer in enumerate(critic.layers):
        state = layer.weight @ state + layer.bias[:, None]
        if index < len(critic.layers) - 1:
            active = torch.from_numpy(rng.random(tuple(state.shape), dtype=np.float32) >= 0.5)
            state = functional.leaky_relu(state, 0.2) * active * 2.0
    return state[0]


def test_critic_gradients_match_autograd():
    critic = Critic(12, (7, 5), np.random.default_rng(0))
    fake, real, mixing = draw_noise(1, 12, 6), draw_noise(2, 12, 6), torch.rand(1, 6)

    critic._rng = np.random.default_rng(3)  # the same units drop out in both computations
    explicit = critic.gradients(fake, real, mixing)
    for parameter in critic.parameters:
        parameter.requires_grad_(True)
    interpolated = torch.lerp(fake, real, mixing).requires_grad_(True)
    output = compute_scores(
        critic, torch.cat([fake, real, interpolated], 1), np.random.default_rng(3)
    )
    (slope,) = torch.autograd.grad(output[12:].sum(), interpolated, create_graph=True)
    penalty = ((slope.norm(dim=0) - 1.0) ** 2).mean()
    loss = output[:6].mean() - output[6:12].mean() + 10.0 * penalty
    expected = torch.autograd.grad(loss, critic.parameters)

    for a, b in zip(explicit, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_input_gradient_matches_autograd():
    critic = Critic(8, (6, 4), np.random.default_rng(4))
    packs = draw_noise(5, 8, 3).requires_grad_(True)

    critic._rng = np.random.default_rng(6)
    explicit = critic.input_gradient(packs.detach())
    output = compute_scores(critic, packs, np.random.default_rng(6)).mean()
    (expected,) = torch.autograd.grad(output, packs)

    torch.testing.assert_close(explicit, expected, rtol=1e-5, atol=1e-6)


def test_generated_rows_have_valid_parts_and_positions():
    generator = Generator(4, (5, 3), LAYOUT, np.random.default_rng(7))

    exponential = torch.from_numpy(
        np.random.default_rng(8).exponential(size=(8, 6)).astype(np.float32)
    )
    encoded = generator.activate(generator.logits(draw_noise(9, 4, 6)), exponential)

    assert encoded.shape == (LAYOUT.width, 6)
    assert (encoded[:2].abs() <= 1).all()
    for column, width in enumerate(LAYOUT.widths):
        part = encoded[LAYOUT.starts[column] : LAYOUT.starts[column] + width]
        torch.testing.assert_close(part.sum(0), torch.ones(6))


def test_frozen_generator_uses_running_statistics():
    generator = Generator(4, (5, 3), LAYOUT, np.random.default_rng(10))
    for seed in range(30):
        generator.logits(draw_noise(seed, 4, 40))  # moves the running means
    inputs = draw_noise(99, 4, 6)

    hidden, output = generator.freeze()
    state = inputs.numpy()
    for weight, bias in hidden:
        state = np.concatenate([np.maximum(weight @ state + bias[:, None], 0), state])
    frozen = output[0] @ state + output[1][:, None]
    expected = inputs
    for layer, norm in generator._hidden:
        normalized = functional.batch_norm(
            layer(expected)[None],
            norm.running_mean,
            norm.running_var,
            norm.weight,
            norm.bias,
            eps=1e-5,
        )[0]
        expected = torch.cat([torch.relu(normalized), expected])

    np.testing.assert_allclose(
        frozen, generator._output(expected).detach().numpy(), rtol=1e-4, atol=1e-5
    )
    layers = TrainedGenerator(hidden, output, 2, "normal", 4).layers
    assert sum(weights.size + biases.size for weights, biases in layers) == 185


def test_informed_generator_starts_at_the_frequencies():
    generator = Generator(4, (), LAYOUT, np.random.default_rng(11))
    frequencies = torch.tensor([0.9, 0.1, 0.2, 0.3, 0.5, 0.6, 0.3, 0.1])

    generator.initialize_biases(frequencies)
    logits = generator.logits(torch.zeros(4, 1))

    torch.testing.assert_close(logits[2:, 0].exp(), frequencies)


def test_networks_do_not_use_the_global_torch_generator():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)

    critic = Critic(8, (6,), np.random.default_rng(0))
    critic.gradients(draw_noise(0, 8, 2), draw_noise(1, 8, 2), torch.full((1, 2), 0.5))
    Generator(4, (5,), LAYOUT, np.random.default_rng(0)).logits(draw_noise(2, 4, 2))

    assert (torch.rand(3) == expected).all()
