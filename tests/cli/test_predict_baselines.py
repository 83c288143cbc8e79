"""``fedneighbors predict`` with personalized baselines."""

import numpy as np
import pytest
from sklearn.datasets import load_wine
from typer.testing import CliRunner

from fedneighbors import baselines
from fedneighbors.cli._main import app
from fedneighbors.datasets import read_columns

X, Y = load_wine(return_X_y=True)
REGION = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")
NAMES = [f"c{j}" for j in range(13)]


@pytest.mark.parametrize("method", [baselines.LocalClassifier, baselines.ClusteredFLClassifier])
def test_each_row_gets_its_clients_prediction(method, tmp_path):
    model = method(hidden=(8,), n_rounds=3).fit(X, Y, parties=REGION)
    model.name_features(NAMES).save(tmp_path / "model.fnk")
    rows = "\n".join(
        ",".join([*map(repr, row), region]) for row, region in zip(X.tolist(), REGION, strict=True)
    )
    (tmp_path / "wine.csv").write_text(",".join([*NAMES, "region"]) + "\n" + rows + "\n")

    files = {"--model": "model.fnk", "--data": "wine.csv", "--out": "p.csv"}
    arguments = [
        argument for option, name in files.items() for argument in (option, str(tmp_path / name))
    ]
    result = CliRunner().invoke(app, ["predict", *arguments, "--party-column", "region"])

    assert result.exit_code == 0, result.output
    with pytest.warns(UserWarning, match="valid feature names"):
        expected = model.predict(X, REGION)
    predictions = read_columns(tmp_path / "p.csv").columns["prediction"]
    assert predictions.astype(int).tolist() == expected.tolist()


def test_a_file_of_an_unknown_method_is_refused(tmp_path):
    from dataclasses import replace

    from fedneighbors.baselines._files import BaselineFile

    path = tmp_path / "model.fnk"
    baselines.LocalClassifier(hidden=(8,), n_rounds=1).fit(X, Y).save(path)
    replace(BaselineFile.load(path), method="Magic").save(path)

    arguments = ["predict", "--model", path, "--data", tmp_path / "wine.csv"]
    result = CliRunner().invoke(app, list(map(str, arguments)))

    assert result.exit_code == 1
    assert "no method is called 'Magic'" in " ".join(result.output.split())
