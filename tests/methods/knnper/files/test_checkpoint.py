"""Trainings on disk: killed ones go on, foreign ones are refused."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from fedneighbors.errors import ModelFileError
from fedneighbors.methods.knnper.files.checkpoint import Checkpoint, fingerprint
from fedneighbors.methods.knnper.protocol import Stage
from fedneighbors.methods.knnper.simulation import Cohort, simulate
from tests.methods.knnper.federations import members, training

KILLED = """
    import os, signal, sys
    from fedneighbors.methods.knnper.files.checkpoint import Checkpoint
    from fedneighbors.methods.knnper.simulation import Cohort, simulate
    from tests.methods.knnper.federations import members, training

    file, kept, parties = Checkpoint(sys.argv[1], "mine"), [], members()

    def keep(stage):
        file.keep(stage)
        kept.append(stage)
        if len(kept) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    simulate(training(parties, keep=keep), Cohort(parties))
"""


def test_a_training_that_was_killed_loses_no_round_that_was_kept(tmp_path):
    whole = members()
    expected = simulate(training(whole), Cohort(whole))

    dead = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "c")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    stage = Checkpoint(tmp_path / "c", "mine").resumed()

    assert dead.returncode == -signal.SIGKILL
    assert stage.number == 2
    again = members()
    found = simulate(training(again, resumed=stage), Cohort(again))
    assert found.result.weights.tobytes() == expected.result.weights.tobytes()


def stage():
    return Stage(3, np.arange(4, dtype=np.float32), np.ones(4, np.float32), np.array([1.0, 0.5]))


def test_a_stage_comes_back_as_it_was(tmp_path):
    file = Checkpoint(tmp_path / "c", "mine")

    assert file.resumed() is None
    file.keep(stage())
    found = file.resumed()

    assert found.number == 3
    assert found.weights.tolist() == [0, 1, 2, 3]
    assert found.weights.dtype == np.float32
    assert found.chosen_on.tolist() == [1] * 4
    assert found.pool.tolist() == [1.0, 0.5]
    file.done()
    assert file.resumed() is None


def test_the_stage_of_another_training_is_refused(tmp_path):
    Checkpoint(tmp_path / "c", "mine").keep(stage())

    with pytest.raises(ModelFileError, match="holds another training"):
        Checkpoint(tmp_path / "c", "yours").resumed()


def test_a_damaged_or_newer_stage_is_refused(tmp_path):
    path = tmp_path / "c"
    Checkpoint(path, "mine").keep(stage())
    raw = path.read_bytes()

    path.write_bytes(raw[:-1])
    with pytest.raises(ModelFileError, match="truncated or altered"):
        Checkpoint(path, "mine").resumed()
    path.write_bytes(raw[:4] + b"\x09" + raw[5:])
    with pytest.raises(ModelFileError, match="format version"):
        Checkpoint(path, "mine").resumed()


def test_fingerprints_tell_settings_and_rows_apart():
    x = np.zeros((2, 3))

    marks = {
        fingerprint("a", 1, arrays=(x,)),
        fingerprint("a", 2, arrays=(x,)),
        fingerprint("a", 1, arrays=(x + 1,)),
        fingerprint("a", 1, arrays=(x.T,)),
    }

    assert len(marks) == 4
