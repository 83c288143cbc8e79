"""OVA Omentum is read from its file, or generated as a surrogate."""

import numpy as np
import pytest

from experiments.datasets.omentum import OMENTUM_FEATURES, load_omentum, omentum_surrogate
from fedneighbors.errors import DataError

FILE = """@relation OVA_Omentum
@attribute ID_REF numeric
@attribute '1007_s_at' numeric
@attribute '1053_at' numeric
@attribute Tissue {Other,Omentum}
@data
1,7.5,3.25,Other
2,?,4,Omentum
3,6,5,Other
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDNEIGHBORS_DATA", str(tmp_path))
    (tmp_path / "fedpnn").mkdir()
    return tmp_path / "fedpnn"


@pytest.mark.parametrize("name", ["OVA_Omentum.arff", "ova_omentum.ARFF"])
def test_an_openml_file_is_read_without_sample_numbers(folder, name):
    (folder / name).write_text(FILE)

    data = load_omentum()

    assert data.name == "OVA Omentum"
    assert data.feature_names == ("1007_s_at", "1053_at")
    np.testing.assert_array_equal(data.x, [[7.5, 3.25], [np.nan, 4], [6, 5]])
    assert data.y.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILE.replace("Omentum\n", "Ovary\n"), "no labels 'Omentum' and 'Other'"),
        ("@attribute ID_REF real\n@attribute T {Omentum,Other}\n@data\n1,Omentum\n2,Other", "no n"),
    ],
)
def test_another_table_with_this_file_name_is_refused(folder, text, message):
    (folder / "OVA_Omentum.arff").write_text(text)

    with pytest.raises(DataError, match=message):
        load_omentum()


def test_without_a_file_rows_are_generated(folder):
    data = load_omentum()

    assert data.name == "omentum_surrogate"
    assert data.x.shape == (1545, OMENTUM_FEATURES)
    assert data.y.sum() == 77
    assert np.isfinite(data.x).all()


def test_a_seed_determines_the_generated_rows():
    first, again, other = (omentum_surrogate(n_features=50, seed=seed) for seed in (1, 1, 2))

    assert first.x.tobytes() == again.x.tobytes()
    assert first.y.tolist() == again.y.tolist() != other.y.tolist()


def test_positive_rows_differ_in_few_genes():
    data = omentum_surrogate(n_features=2000)

    differences = data.x[data.y == 1].mean(axis=0) - data.x[data.y == 0].mean(axis=0)

    # a mean of 77 rows errs by .14; 40 genes of the tissue and 6 of positive rows are shifted
    assert 10 <= np.sum(np.abs(differences) > 0.6) <= 46


def test_zero_genes_are_refused():
    with pytest.raises(ValueError, match="n_features of 1 or more"):
        omentum_surrogate(n_features=0)
