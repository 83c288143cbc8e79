"""Built-in networks: shapes, initial weights, and embeddings."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedneighbors.neural._architectures import ALPHABET, cnn, lstm, mobilenet
from fedneighbors.neural._blueprint import BUILT_IN, build_network
from fedneighbors.neural._network import state_of

RANDOM = torch.Generator().manual_seed(0)


def make_images(*shape):
    return torch.rand(*shape, generator=RANDOM)


def build(name, shape, *, seed=0):
    settings = SimpleNamespace(model=name, embedding="no", head="no", hidden=(6, 5))
    return build_network(settings, shape, 7, seed=seed)


@pytest.mark.parametrize(
    ("name", "shape", "width"),
    [
        ("perceptron", (12,), 5),
        ("cnn", (28, 28), 128),
        ("cnn", (3, 32, 32), 128),
        ("mobilenet", (28, 28), 1280),
        ("mobilenet", (3, 32, 32), 1280),
        ("lstm", (9,), 1024),
    ],
)
def test_a_built_in_network_gives_scores_and_embeddings(name, shape, width):
    net = build(name, shape)
    x = make_images(3, *shape) if name != "lstm" else torch.randint(80, (3, *shape))

    keys, scores = net.embed(state_of(net.module), x)

    assert (keys.shape, scores.shape) == ((3, width), (3, 7))
    assert torch.isfinite(keys).all()
    assert len(net.head_names) == 2


@pytest.mark.parametrize(
    ("name", "shape"),
    [("perceptron", (12,)), ("cnn", (8, 8)), ("mobilenet", (8, 8)), ("lstm", (9,))],
)
def test_initial_weights_depend_on_the_seed_alone(name, shape):
    before = torch.get_rng_state()

    first, repeated, other = (state_of(build(name, shape, seed=seed).module) for seed in (3, 3, 4))

    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], repeated[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_unknown_network_names_list_the_known_ones():
    assert BUILT_IN == ("perceptron", "cnn", "mobilenet", "lstm")
    with pytest.raises(TypeError, match=r"'perceptron', 'cnn', 'mobilenet', 'lstm'.* got 'resnet'"):
        build("resnet", (8, 8))


@pytest.mark.parametrize("make", [cnn, mobilenet])
def test_images_without_channels_have_one_channel(make):
    x = make_images(4, 12, 12)
    flat, deep = make((12, 12), 3, seed=1), make((1, 12, 12), 3, seed=1)

    keys, scores = flat.embed(state_of(flat.module), x)

    deep_keys, deep_scores = deep.embed(state_of(deep.module), x[:, None])
    assert torch.equal(keys, deep_keys)
    assert torch.equal(scores, deep_scores)


@pytest.mark.parametrize("make", [cnn, mobilenet])
@pytest.mark.parametrize("shape", [(784,), (2, 3, 28, 28), (3, 28), (0, 28, 28)])
def test_invalid_images_are_refused(make, shape):
    with pytest.raises(ValueError, match=r"expected (rows of shape|images of)"):
        make(shape, 3)


@pytest.mark.parametrize("make", [cnn, mobilenet])
@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 24, 3)])
def test_images_with_the_channels_last_are_refused(make, shape):
    with pytest.raises(ValueError, match=r"expected channels first: .*transpose\(0, 3, 1, 2\)"):
        make(shape, 3)


def test_an_alpha_channel_is_no_narrow_image():
    with pytest.raises(ValueError, match="expected channels first"):
        cnn((28, 28, 4), 3)
    net = cnn((6, 9, 4), 3)  # six channels of 9 x 4 pixels

    assert net.embed(state_of(net.module), make_images(2, 6, 9, 4))[1].shape == (2, 3)


def test_a_small_network_halves_images_of_odd_sides():
    net = cnn((9, 11), 2, channels=(4, 5, 6), width=3)

    keys, _ = net.embed(state_of(net.module), make_images(2, 9, 11))

    assert keys.shape == (2, 3)
    with pytest.raises(ValueError, match="images of 8 x 8 pixels or more"):
        cnn((7, 9), 2, channels=(4, 5, 6))


@pytest.mark.parametrize(("width", "n"), [(1.0, 3_504_872), (0.5, 1_968_680)])
def test_mobilenet_has_as_many_weights_as_its_reference(width, n):
    net = mobilenet((3, 224, 224), 1000, width=width)

    assert sum(weights.numel() for weights in net.module.parameters()) == n


@pytest.mark.parametrize(
    ("side", "stride", "final_side"),
    [(32, None, 4), (28, None, 4), (64, None, 2), (32, 16, 2), (40, 32, 2)],
)
def test_small_images_are_halved_less_often(side, stride, final_side):
    net = mobilenet((side, side), 2, stride=stride, width=0.25)
    shapes = []
    net.module.body[-2].register_forward_hook(
        lambda _module, inputs, _out: shapes.append(inputs[0].shape)
    )

    net.embed(state_of(net.module), make_images(1, side, side))

    assert shapes == [(1, 1280, final_side, final_side)]


@pytest.mark.parametrize("parameters", [{"stride": 4}, {"width": 0.0}, {"dropout": 1.0}])
def test_mobilenet_refuses_invalid_parameters(parameters):
    with pytest.raises(ValueError, match=f"expected {next(iter(parameters))}"):
        mobilenet((32, 32), 2, **parameters)


def test_lstm_embeddings_are_both_layers_hidden_and_cell_states():
    net = lstm((6,), 5, n_tokens=11, width=3, hidden=4, seed=2)
    x = torch.randint(11, (7, 6), generator=RANDOM)

    keys, scores = net.embed(state_of(net.module), x)

    with torch.no_grad():
        outputs, (hidden, cell) = net.module.body(net.module.characters(x))
        expected = torch.cat([hidden[0], hidden[1], cell[0], cell[1]], dim=1)
        assert torch.equal(keys, expected)
        assert torch.equal(scores, net.module.head(outputs[:, -1]))


def test_an_lstm_reads_windows_of_the_alphabet():
    net = lstm((80,), 62)

    assert net.n_tokens == len(ALPHABET) == net.module.characters.num_embeddings
    assert net.reads_tokens
    with pytest.raises(ValueError, match="windows of tokens"):
        lstm((8, 10), 62)


def test_an_lstm_uses_the_given_state():
    net = lstm((6,), 5, n_tokens=11, width=3, hidden=4, seed=2)
    other = lstm((6,), 5, n_tokens=11, width=3, hidden=4, seed=3)
    x = torch.randint(11, (7, 6), generator=RANDOM)

    result = net.embed(state_of(other.module), x)

    expected = other.embed(state_of(other.module), x)
    assert all(torch.equal(actual, wanted) for actual, wanted in zip(result, expected, strict=True))


def test_only_networks_with_embedding_tables_read_tokens():
    with_table = nn.Sequential()
    with_table.add_module("body", nn.EmbeddingBag(4, 3))
    with_table.add_module("head", nn.Linear(3, 2))

    settings = SimpleNamespace(model=with_table, embedding="body", head="head", hidden=())
    assert build_network(settings, (5,), 2, seed=0).reads_tokens
    assert not cnn((8, 8), 2).reads_tokens
    assert np.array_equal(
        [net.has_convolutions for net in (cnn((8, 8), 2), lstm((3,), 2))], [True, False]
    )
