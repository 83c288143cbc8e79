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
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def make_small_classifier(**changed):
    return KNNPerClassifier(hidden=(5,), n_rounds=1, n_neighbors=3, **changed)


def test_a_missing_gpu_is_refused_before_anything_runs(no_gpu):
    net = perceptron(64, 10, hidden=(5,))
    rows = torch.zeros(2, 64)

    for call in (
        lambda: torch_device("cuda"),
        lambda: Trainer(net, rows, torch.zeros(2, dtype=torch.int64), device="cuda"),
        lambda: net.embed(state_of(net.module), rows, device="cuda"),
        lambda: KNNPerParty("a", X, Y, net, device="cuda"),
        lambda: make_small_classifier(device="cuda").fit(X, Y),
        lambda: DittoClassifier(hidden=(5,), n_rounds=1, device="cuda").fit(X, Y),
    ):
        with pytest.raises(MissingDeviceError, match=r"finds none; .* device='cpu'"):
            call()
    assert issubclass(MissingDeviceError, FedneighborsError)


def test_auto_is_the_cpu_without_a_gpu(no_gpu):
    assert torch_device("auto") == torch_device("cpu") == torch.device("cpu")

    automatic, on_cpu = (
        make_small_classifier(device="auto").fit(X, Y),
        make_small_classifier().fit(X, Y),
    )

    assert automatic.weights_.tobytes() == on_cpu.weights_.tobytes()
    assert np.array_equal(automatic.predict_proba(X), on_cpu.predict_proba(X))


@pytest.mark.parametrize("baseline", [APFLClassifier, DittoClassifier])
def test_baselines_use_the_given_device(baseline, no_gpu):
    automatic = baseline(hidden=(5,), n_rounds=1, device="auto").fit(X, Y)
    on_cpu = baseline(hidden=(5,), n_rounds=1).fit(X, Y)

    assert np.array_equal(automatic.predict_proba(X), on_cpu.predict_proba(X))
    automatic.set_params(device="cuda")
    with pytest.raises(MissingDeviceError):
        automatic.add_client("new", X, Y)


def test_an_available_gpu_is_used_on_request(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    devices = [torch_device(word).type for word in ("auto", "cuda", "cpu")]

    assert devices == ["cuda", "cuda", "cpu"]


@pytest.mark.parametrize("word", ["gpu", "", None])
def test_unknown_devices_are_refused(word):
    with pytest.raises(ValueError, match="expected device 'auto', 'cpu' or 'cuda', got"):
        make_small_classifier(device=word).fit(X, Y)


def test_a_model_set_to_the_gpu_needs_a_gpu(no_gpu):
    model = make_small_classifier().fit(X, Y)

    model.set_params(device="cuda")

    with pytest.raises(MissingDeviceError):
        model.predict(X)
    assert model.set_params(device="cpu").predict(X).shape == (60,)
