"""Experiments with FlyNN by name."""

from experiments.flynn import bundled, hyperparameters, openml, privacy, scaling, spaces, synthetic
from experiments.harness import Study

EXPERIMENTS: dict[str, Study] = {
    study.name: study
    for study in (
        synthetic.STUDY,
        openml.STUDY,
        scaling.STUDY,
        hyperparameters.STUDY,
        bundled.BUNDLED,
        bundled.IMBALANCE,
        spaces.STUDY,
        privacy.STUDY,
    )
}
"""The experiments of the paper by name."""
