"""Trainings on disk: killed ones go on, foreign ones are refused."""

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
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper._checkpoint import Checkpoint, compute_fingerprint
from fedneighbors.methods.knnper._training import Cohort
from fedneighbors.methods.knnper.protocol import Stage
from tests.methods.knnper.federations import members, training

KILLED = """
    import os, signal, sys
    from fedneighbors.federation._loop import run_rounds
    from fedneighbors.methods.knnper._checkpoint import Checkpoint
    from fedneighbors.methods.knnper._training import Cohort
    from tests.methods.knnper.federations import members, training

    file, kept, parties = Checkpoint(sys.argv[1], "mine"), [], members()

    def keep(stage):
        file.write(stage)
        kept.append(stage)
        if len(kept) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    run_rounds(training(parties, on_stage=keep), Cohort(parties))
"""


def test_an_interrupted_training_keeps_its_rounds(tmp_path):
    whole = members()
    expected = run_rounds(training(whole), Cohort(whole))

    dead = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "c")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    stage = Checkpoint(tmp_path / "c", "mine").resume()

    assert dead.returncode == -signal.SIGKILL
    assert stage.number == 2
    again = members()
    found = run_rounds(training(again, resumed=stage), Cohort(again))
    assert found.result.weights.tobytes() == expected.result.weights.tobytes()


def stage():
    return Stage(3, np.arange(4, dtype=np.float32), np.ones(4, np.float32), np.array([1.0, 0.5]))


def test_a_stage_is_read_back_equal(tmp_path):
    file = Checkpoint(tmp_path / "c", "mine")

    assert file.resume() is None
    file.write(stage())
    found = file.resume()

    assert found.number == 3
    assert found.weights.tolist() == [0, 1, 2, 3]
    assert found.weights.dtype == np.float32
    assert found.chosen_on.tolist() == [1] * 4
    assert found.pool.tolist() == [1.0, 0.5]
    file.delete()
    assert file.resume() is None


def test_the_stage_of_another_training_is_refused(tmp_path):
    Checkpoint(tmp_path / "c", "mine").write(stage())

    with pytest.raises(ModelFileError, match="belongs to another training"):
        Checkpoint(tmp_path / "c", "yours").resume()


def test_a_damaged_or_newer_stage_is_refused(tmp_path):
    path = tmp_path / "c"
    Checkpoint(path, "mine").write(stage())
    raw = path.read_bytes()

    path.write_bytes(raw[:-1])
    with pytest.raises(ModelFileError, match="truncated or altered"):
        Checkpoint(path, "mine").resume()
    path.write_bytes(raw[:4] + b"\x09" + raw[5:])
    with pytest.raises(ModelFileError, match="format version"):
        Checkpoint(path, "mine").resume()


def test_fingerprints_tell_settings_and_rows_apart():
    x = np.zeros((2, 3))

    marks = {
        compute_fingerprint("a", 1, arrays=(x,)),
        compute_fingerprint("a", 2, arrays=(x,)),
        compute_fingerprint("a", 1, arrays=(x + 1,)),
        compute_fingerprint("a", 1, arrays=(x.T,)),
    }

    assert len(marks) == 4


X, Y = load_wine(return_X_y=True)
CELLAR = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")


class Bent(nn.Module):
    """Transforms its input by a function that is not a layer."""

    def __init__(self, bend):
        super().__init__()
        self.bend = bend
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(13, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.bend(self.body(x)))


class StoppedError(Exception):
    pass


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Return a function that stops a training after two rounds, and the path of its checkpoint."""

    def stop(model):
        whole = Checkpoint.write

        def keep(self, stage):
            whole(self, stage)
            if stage.number == 2:
                raise StoppedError

        model.set_params(checkpoint=tmp_path / "c")
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "write", keep)
            with pytest.raises(StoppedError):
                model.fit(X, Y, parties=CELLAR)
        return tmp_path / "c"

    return stop


def test_a_resumed_training_equals_an_uninterrupted_one(kept):
    whole = KNNPerClassifier(hidden=(8,), n_rounds=4).fit(X, Y, parties=CELLAR)

    path = kept(KNNPerClassifier(hidden=(8,), n_rounds=4))
    found = KNNPerClassifier(hidden=(8,), n_rounds=4, checkpoint=path).fit(X, Y, parties=CELLAR)

    assert found.weights_.tobytes() == whole.weights_.tobytes()
    assert not path.exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"standardize": True}, {"standardize": False}),
        ({"classes": [0, 1, 2, 3]}, {"classes": [-1, 0, 1, 2]}),
        ({"model": Bent(torch.tanh)}, {"model": Bent(torch.relu)}),
        ({"random_state": 0}, {"random_state": 1}),
        ({"weight_decay": 0.0}, {"weight_decay": 0.1}),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(kept, before, after):
    shared = {"hidden": (8,), "n_rounds": 4}
    path = kept(KNNPerClassifier(**shared, **before))
    with pytest.raises(ModelFileError, match="another training"):
        KNNPerClassifier(**shared, **after, checkpoint=path).fit(X, Y, parties=CELLAR)
    assert path.exists()


def test_a_random_seed_cannot_resume(tmp_path):
    model = KNNPerClassifier(random_state=None, checkpoint=tmp_path / "c")
    with pytest.raises(ValueError, match="set random_state to"):
        model.fit(X, Y, parties=CELLAR)


def test_temporary_files_of_killed_writers_are_deleted(tmp_path):
    path, other = tmp_path / "c[1]", tmp_path / ".c1.0123.part"
    for part in (tmp_path / ".c[1].0123456789ab.part", other):
        part.write_bytes(b"half")
    assert Checkpoint(path, "mine").resume() is None
    assert [found.name for found in tmp_path.iterdir()] == [other.name]
