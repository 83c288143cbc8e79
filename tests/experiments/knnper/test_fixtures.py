import numpy as np
import pytest

from experiments.knnper.federations import Scope, make_clients
from experiments.knnper.fixtures import EmbeddingBank, train_clients, train_network
from fedneighbors.errors import DataError


def make_bank():
    x = np.arange(12.0).reshape(6, 2)
    return EmbeddingBank.collect(x, np.arange(6), ["b", "a", "b", "c", "a", "b"])


def test_rows_of_a_client_are_contiguous_and_in_order():
    keys, labels = make_bank().of("b")

    assert labels.tolist() == [0, 2, 5]
    assert keys.tolist() == [[0.0, 1.0], [4.0, 5.0], [10.0, 11.0]]
    assert make_bank().sizes == {"a": 2, "b": 3, "c": 1}
    assert make_bank().rows[make_bank().span("b")].tolist() == [0, 2, 5]


def test_a_client_gets_a_read_only_view_of_the_bank():
    embedding_bank = make_bank()

    keys, _ = embedding_bank.of("a")

    assert np.shares_memory(keys, embedding_bank.embeddings)
    with pytest.raises(ValueError, match="read-only"):
        keys[0, 0] = 1.0


def test_embeddings_that_are_not_finite_are_refused():
    x = np.zeros((3, 2))
    x[1, 1] = np.nan

    with pytest.raises(DataError, match=r"client 'b': 1 embeddings .* lower its learning rate"):
        EmbeddingBank.collect(x, [0, 0, 0], ["a", "b", "c"])


def test_an_unknown_client_is_named():
    with pytest.raises(KeyError, match="no client 'z'"):
        make_bank().of("z")


def test_an_empty_bank_has_no_clients():
    empty = EmbeddingBank.collect(np.empty((0, 3)), np.empty(0), [])

    assert len(empty) == 0
    assert list(empty) == []


def test_the_network_alone_is_that_of_knnper():
    clients = make_clients("label skew", Scope("digits", 300, 6, 3, ()), 0)

    network, knnper = train_network(clients, 3, 1), train_clients(clients, 3, 1)

    np.testing.assert_array_equal(network.weights_, knnper.weights_)
    for alone, both in zip(network.embed(clients.x), knnper.embed(clients.x), strict=True):
        np.testing.assert_array_equal(alone, both)
    assert set(knnper.clients_) == set(clients.names)
