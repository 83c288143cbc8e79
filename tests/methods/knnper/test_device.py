"""Devices of networks: the CPU by default."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedneighbors.baselines import APFLClassifier, DittoClassifier
from fedneighbors.errors import FedneighborsError, MissingDeviceError
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper._client import KNNPerParty
from fedneighbors.neural._blueprint import perceptron
from fedneighbors.neural._network import state_of, torch_device
from fedneighbors.neural._trainer import Trainer

X, Y = (part[:60] for part in load_digits(return_X_y=True))


@pytest.fixture
def no_card(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def small(**changed):
    return KNNPerClassifier(hidden=(5,), n_rounds=1, n_neighbors=3, **changed)


def test_a_missing_card_is_refused_before_anything_runs(no_card):
    net = perceptron(64, 10, hidden=(5,))
    rows = torch.zeros(2, 64)

    for ask in (
        lambda: torch_device("cuda"),
        lambda: Trainer(net, rows, torch.zeros(2, dtype=torch.int64), device="cuda"),
        lambda: net.embed(state_of(net.module), rows, device="cuda"),
        lambda: KNNPerParty("a", X, Y, net, device="cuda"),
        lambda: small(device="cuda").fit(X, Y),
        lambda: DittoClassifier(hidden=(5,), n_rounds=1, device="cuda").fit(X, Y),
    ):
        with pytest.raises(MissingDeviceError, match=r"finds none; .* device='cpu'"):
            ask()
    assert issubclass(MissingDeviceError, FedneighborsError)


def test_auto_is_the_cpu_without_a_gpu(no_card):
    assert torch_device("auto") == torch_device("cpu") == torch.device("cpu")

    there, here = small(device="auto").fit(X, Y), small().fit(X, Y)

    assert there.weights_.tobytes() == here.weights_.tobytes()
    assert np.array_equal(there.predict_proba(X), here.predict_proba(X))


@pytest.mark.parametrize("baseline", [APFLClassifier, DittoClassifier])
def test_baselines_use_the_given_device(baseline, no_card):
    there = baseline(hidden=(5,), n_rounds=1, device="auto").fit(X, Y)
    here = baseline(hidden=(5,), n_rounds=1).fit(X, Y)

    assert np.array_equal(there.predict_proba(X), here.predict_proba(X))
    there.set_params(device="cuda")
    with pytest.raises(MissingDeviceError):
        there.add_client("new", X, Y)


def test_an_available_gpu_is_used_on_request(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    found = [torch_device(word).type for word in ("auto", "cuda", "cpu")]

    assert found == ["cuda", "cuda", "cpu"]


@pytest.mark.parametrize("word", ["gpu", "", None])
def test_unknown_devices_are_refused(word):
    with pytest.raises(ValueError, match="expected device 'auto', 'cpu' or 'cuda', got"):
        small(device=word).fit(X, Y)


def test_a_gpu_model_needs_a_gpu_or_an_error(no_card):
    found = small().fit(X, Y)

    found.set_params(device="cuda")

    with pytest.raises(MissingDeviceError):
        found.predict(X)
    assert found.set_params(device="cpu").predict(X).shape == (60,)
