"""Checkpoints: a killed training resumes; the checkpoint of another training is refused."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from torch import nn

from fedneighbors.errors import ModelFileError
from fedneighbors.federation._loop import run_rounds
from fedneighbors.federation._messages import encode
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper._checkpoint import Checkpoint, compute_fingerprint
from fedneighbors.methods.knnper._training import Cohort
from fedneighbors.methods.knnper.personal._pool import FittedPool
from fedneighbors.methods.knnper.protocol import Stage
from tests.methods.knnper.federations import build_coordinator, make_members

KILLED = """
    import os, signal, sys
    from fedneighbors.federation._loop import run_rounds
    from fedneighbors.methods.knnper._checkpoint import Checkpoint
    from fedneighbors.methods.knnper._training import Cohort
    from tests.methods.knnper.federations import build_coordinator, make_members

    file, stages, parties = Checkpoint(sys.argv[1], "mine"), [], make_members()

    def write(stage):
        file.write(stage)
        stages.append(stage)
        if len(stages) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    run_rounds(build_coordinator(parties, on_stage=write), Cohort(parties))
"""


def test_an_interrupted_training_keeps_its_rounds(tmp_path):
    parties = make_members()
    expected = run_rounds(build_coordinator(parties), Cohort(parties))

    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "c")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    stage = Checkpoint(tmp_path / "c", "mine").resume()

    assert process.returncode == -signal.SIGKILL
    assert stage.number == 2
    resumed = make_members()
    outcome = run_rounds(build_coordinator(resumed, resumed=stage), Cohort(resumed))
    assert outcome.result.weights.tobytes() == expected.result.weights.tobytes()


POOL = FittedPool(("shared model", "memory"), np.array([1.0, 0.5]), 0.25, np.array([0.5, 0.3]))


def make_stage():
    return Stage(3, np.arange(4, dtype=np.float32), np.ones(4, np.float32), POOL)


def test_a_stage_is_read_back_equal(tmp_path):
    file = Checkpoint(tmp_path / "c", "mine")

    assert file.resume() is None
    file.write(make_stage())
    resumed = file.resume()

    assert resumed.number == 3
    assert resumed.weights.tolist() == [0, 1, 2, 3]
    assert resumed.weights.dtype == np.float32
    assert resumed.chosen_on.tolist() == [1] * 4
    assert encode(resumed.pool) == encode(POOL)
    file.delete()
    assert file.resume() is None


def test_the_stage_of_another_training_is_refused(tmp_path):
    Checkpoint(tmp_path / "c", "mine").write(make_stage())

    with pytest.raises(ModelFileError, match="belongs to another training"):
        Checkpoint(tmp_path / "c", "yours").resume()


def test_a_damaged_or_newer_stage_is_refused(tmp_path):
    path = tmp_path / "c"
    Checkpoint(path, "mine").write(make_stage())
    raw = path.read_bytes()

    path.write_bytes(raw[:-1])
    with pytest.raises(ModelFileError, match="truncated or altered"):
        Checkpoint(path, "mine").resume()
    path.write_bytes(raw[:4] + b"\x09" + raw[5:])
    with pytest.raises(ModelFileError, match="format version"):
        Checkpoint(path, "mine").resume()


def test_fingerprints_differ_for_other_settings_and_rows():
    x = np.zeros((2, 3))

    fingerprints = {
        compute_fingerprint("a", 1, arrays=(x,)),
        compute_fingerprint("a", 2, arrays=(x,)),
        compute_fingerprint("a", 1, arrays=(x + 1,)),
        compute_fingerprint("a", 1, arrays=(x.T,)),
    }

    assert len(fingerprints) == 4


X, Y = load_wine(return_X_y=True)
PARTIES = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")


class FunctionalNet(nn.Module):
    """Network with a function that is not a layer."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(13, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.function(self.body(x)))


class StoppedError(Exception):
    pass


@pytest.fixture
def interrupt(tmp_path, monkeypatch):
    """Return a function that stops a training after two rounds and returns its checkpoint."""

    def stop(model):
        write = Checkpoint.write

        def write_then_stop(self, stage):
            write(self, stage)
            if stage.number == 2:
                raise StoppedError

        model.set_params(checkpoint=tmp_path / "c")
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "write", write_then_stop)
            with pytest.raises(StoppedError):
                model.fit(X, Y, parties=PARTIES)
        return tmp_path / "c"

    return stop


def test_a_resumed_training_equals_an_uninterrupted_one(interrupt):
    expected = KNNPerClassifier(hidden=(8,), n_rounds=4).fit(X, Y, parties=PARTIES)

    path = interrupt(KNNPerClassifier(hidden=(8,), n_rounds=4))
    resumed = KNNPerClassifier(hidden=(8,), n_rounds=4, checkpoint=path).fit(X, Y, parties=PARTIES)

    assert resumed.weights_.tobytes() == expected.weights_.tobytes()
    assert not path.exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"standardize": True}, {"standardize": False}),
        ({"classes": [0, 1, 2, 3]}, {"classes": [-1, 0, 1, 2]}),
        ({"model": FunctionalNet(torch.tanh)}, {"model": FunctionalNet(torch.relu)}),
        ({"random_state": 0}, {"random_state": 1}),
        ({"weight_decay": 0.0}, {"weight_decay": 0.1}),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(interrupt, before, after):
    shared = {"hidden": (8,), "n_rounds": 4}
    path = interrupt(KNNPerClassifier(**shared, **before))
    with pytest.raises(ModelFileError, match="another training"):
        KNNPerClassifier(**shared, **after, checkpoint=path).fit(X, Y, parties=PARTIES)
    assert path.exists()


def test_a_random_seed_cannot_resume(tmp_path):
    model = KNNPerClassifier(random_state=None, checkpoint=tmp_path / "c")
    with pytest.raises(ValueError, match="set random_state to"):
        model.fit(X, Y, parties=PARTIES)


def test_temporary_files_of_killed_writers_are_deleted(tmp_path):
    path, other = tmp_path / "c[1]", tmp_path / ".c1.0123.part"
    for part in (tmp_path / ".c[1].0123456789ab.part", other):
        part.write_bytes(b"half")
    assert Checkpoint(path, "mine").resume() is None
    assert [path.name for path in tmp_path.iterdir()] == [other.name]
