"""Options of ``fedneighbors run knnper``: network, schedule, memories, privacy, images."""

import numpy as np
import pytest
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.records import read_record

RNG = np.random.default_rng(0)


def call(*arguments):
    return CliRunner().invoke(app, ["run", "knnper", *map(str, arguments)])


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Return a CSV file of two columns, a label and a client."""
    path = tmp_path_factory.mktemp("table") / "table.csv"
    rows = [f"{x:.3f},{y:.3f},{int(x > 0)},{'ab'[i % 2]}" for i, (x, y) in enumerate(
        RNG.uniform(-3, 3, (120, 2))
    )]  # fmt: skip
    path.write_text("\n".join(["u,v,kind,site", *rows]))
    return path


def fit(table, out, *options):
    """Run on the table; return the fitted model and the record."""
    common = ("--data", table, "--label", "kind", "--party-column", "site", "--out", out)

    result = call(*common, *options)

    assert result.exit_code == 0, result.output
    return KNNPerClassifier.load(out / "model.fnk"), read_record(out / "record.jsonl")


def test_options_reach_network_schedule_and_memories(table, tmp_path):
    model, record = fit(
        table, tmp_path, "--hidden", "8,4", "--rounds", "plateau", "--patience", 1,
        "--max-rounds", 3, "--schedule", "cosine", "--learning-rate", 0.1,
        "--participation", 0.5, "--memory", "8-bit", "--capacity", 20, "--strategy", "fifo",
    )  # fmt: skip

    assert (model.hidden, model.memory, model.capacity) == ((8, 4), "8-bit", 20)
    assert model.strategy == "fifo"
    assert (record.parameters["n_rounds"], record.parameters["participation"]) == ("plateau", 0.5)
    assert {len(state.memory) for state in model.clients_.values()} == {20}


@pytest.mark.parametrize("representation", ["rows", "discriminants"])
def test_a_frozen_representation_needs_no_rounds(table, tmp_path, representation):
    _, record = fit(table, tmp_path, "--representation", representation)

    assert record.parameters["representation"] == representation
    assert record.parameters["n_rounds"] == 0


def test_a_budget_is_spent_and_the_manifest_is_omitted(table, tmp_path):
    pytest.importorskip("opacus")
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'label = "kind"\nclasses = [0, 1]\n'
        + "".join(
            f'[columns.{name}]\nkind = "number"\nlow = -3\nhigh = 3\nmissing = 0\n'
            for name in ("u", "v")
        )
    )

    model, record = fit(
        table, tmp_path / "out", "--rounds", 2, "--epsilon", 2, "--delta", "1e-5",
        "--schema", schema,
    )  # fmt: skip

    assert "epsilon" in model.guarantee_
    assert 0 < record.privacy["largest epsilon spent"] <= 2
    assert "stayed within the privacy budget" in " ".join(record.notes)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--representation", "rows", "--rounds", 3], "--rounds is for a network"),
        (["--representation", "rows", "--schedule", "cosine"], "--schedule is for a network"),
        (["--representation", "rows", "--model", "cnn"], "--model is for a network"),
        (["--representation", "discriminants", "--hidden", "8"], "--hidden is for a network"),
        (["--model", "cnn", "--hidden", "8"], "--hidden is for a perceptron"),
        (["--hidden", "8,x"], "expected --hidden as numbers"),
        (["--rounds", "many"], "expected --rounds as 1 or more, or plateau"),
        (["--rounds", "0"], "expected --rounds as 1 or more, or plateau"),
        (["--patience", 3], "--patience needs --rounds plateau"),
        (["--max-rounds", 3, "--rounds", 9], "--max-rounds needs --rounds plateau"),
        (["--memory", "centers", "--capacity", 9], "--memory centers stores no rows"),
        (["--memory", "centers", "--strategy", "drift"], "--memory centers stores no rows"),
        (["--strategy", "fifo"], "--strategy fifo drops rows beyond --capacity"),
        (["--delta", "1e-5"], "--delta needs --epsilon"),
        (["--epsilon", "1"], "epsilon needs a schema"),
        (["--model", "cnn"], "--model cnn needs images of one shape, channels first"),
    ],
)
def test_options_that_exclude_each_other_are_refused(table, options, words):
    result = call("--data", table, "--label", "kind", "--party-column", "site", *options)

    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", "").split())


def make_images(n=60):
    """Return images of 3 channels, 8 x 8 pixels, that are bright at the top in class 1."""
    labels = np.arange(n) % 2
    images = RNG.normal(size=(n, 3, 8, 8)).astype(np.float32)
    images[labels == 1, :, :4] += 2
    return images, labels


def test_images_with_channels_first_train_a_convolutional_network(tmp_path):
    images, labels = make_images()
    np.savez(tmp_path / "images.npz", x=images, y=labels, parties=np.arange(60) // 30)

    result = call(
        "--data", tmp_path / "images.npz", "--partition", "natural", "--model", "cnn",
        "--rounds", 2, "--out", tmp_path / "out",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    model = KNNPerClassifier.load(tmp_path / "out" / "model.fnk")
    assert sorted(model.clients_) == ["0", "1"]
    predicted = CliRunner().invoke(app, [
        "predict", "--model", str(tmp_path / "out" / "model.fnk"), "--party", "0",
        "--data", str(tmp_path / "images.npz"), "--out", str(tmp_path / "p.csv"),
    ])  # fmt: skip
    assert predicted.exit_code == 0, predicted.output
    cells = (tmp_path / "p.csv").read_text().split()[1:]
    assert list(map(int, cells)) == model.predict(images, ["0"] * 60).tolist()


def test_images_with_channels_first_train_a_perceptron_as_tables(tmp_path):
    images, labels = make_images()
    np.savez(tmp_path / "images.npz", x=images, y=labels)

    result = call(
        "--data", tmp_path / "images.npz", "--parties", 2, "--rounds", 1, "--out", tmp_path / "out"
    )

    assert result.exit_code == 0, result.output
    assert KNNPerClassifier.load(tmp_path / "out" / "model.fnk").n_features_in_ == 3 * 8 * 8


def test_images_with_channels_last_are_refused(tmp_path):
    images, labels = make_images()
    np.savez(tmp_path / "images.npz", x=images.transpose(0, 2, 3, 1), y=labels)

    result = call("--data", tmp_path / "images.npz", "--parties", 2, "--model", "cnn")

    assert result.exit_code != 0
    assert "channels first" in " ".join(result.output.split())
