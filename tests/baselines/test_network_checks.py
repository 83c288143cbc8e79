"""Networks that do not suit the rows are refused before any method trains them."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from torch import nn

from fedneighbors import baselines
from fedneighbors.methods.knnper import KNNPerClassifier

X, Y = load_wine(return_X_y=True)
REGION = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")


class Small(nn.Module):
    def __init__(self, n_inputs=13, n_outputs=3):
        super().__init__()
        self.body, self.head = nn.Linear(n_inputs, 4), nn.Linear(4, n_outputs)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


ALL = [KNNPerClassifier, *(getattr(baselines, name) for name in baselines.TITLES.values())]


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Small(n_outputs=7), "expected a model with 3 scores for each row"),
        (Small(n_outputs=2), "expected a model with 3 scores for each row"),
        (Small(n_inputs=9), r"does not support rows of shape \(13,\)"),
        (Small().half(), "weights of 32 or 64 bits, got torch.float16"),
    ],
)
def test_a_network_of_other_sizes_is_refused(method, module, message):
    with pytest.raises(ValueError, match=message):
        method(module, n_rounds=1).fit(X, Y, parties=REGION)


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("hidden", [(), (0,), (-1,), (8.5,), 8, "ab"])
def test_invalid_hidden_layers_are_refused(method, hidden):
    with pytest.raises(ValueError, match=r"in hidden|expected hidden"):
        method(hidden=hidden, n_rounds=1).fit(X, Y, parties=REGION)


@pytest.mark.parametrize("method", ALL)
def test_frozen_parameters_do_not_change(method):
    module = Small()
    module.body.weight.requires_grad_(False)
    before = module.body.weight.detach().clone()

    fitted = method(module, n_rounds=2).fit(X, Y, parties=REGION)

    state = fitted._network.state(fitted.weights_)
    assert torch.equal(state["body.weight"], before)
    # these have no shared training
    if method not in (baselines.LocalClassifier, baselines.FedProtoClassifier):
        assert not torch.equal(state["body.bias"], module.body.bias)


@pytest.mark.parametrize("method", ALL)
def test_a_frozen_head_is_refused(method):
    module = Small()
    module.head.requires_grad_(False)
    with pytest.raises(ValueError, match="do not freeze it"):
        method(module, n_rounds=1).fit(X, Y, parties=REGION)
