"""Experiments by name; modules are imported on first use."""

from collections.abc import Mapping
from importlib import import_module

from experiments.harness import Study

EXPERIMENTS: Mapping[str, str] = {
    "flynn.synthetic": "flynn.synthetic.STUDY",
    "flynn.openml": "flynn.openml.STUDY",
    "flynn.defaults": "flynn.defaults.STUDY",
    "flynn.scaling": "flynn.scaling.STUDY",
    "flynn.hyperparameters": "flynn.hyperparameters.STUDY",
    "flynn.bundled": "flynn.bundled.BUNDLED",
    "flynn.imbalance": "flynn.bundled.IMBALANCE",
    "flynn.spaces": "flynn.spaces.STUDY",
    "flynn.privacy": "flynn.privacy.study.STUDY",
    "fedknn.k": "fedknn.sweeps.NEIGHBORS",
    "fedknn.providers": "fedknn.sweeps.PROVIDERS",
    "fedknn.epsilon": "fedknn.budgets.STUDY",
    "fedknn.local_cost": "fedknn.sweeps.LOCAL_COST",
    "fedknn.latency": "fedknn.breakdown.LATENCY",
    "fedknn.breakdown": "fedknn.breakdown.BREAKDOWN",
    "fedknn.scalability": "fedknn.sweeps.SCALABILITY",
    "fedknn.ablation": "fedknn.sweeps.ABLATION",
    "fedknn.costs": "fedknn.costs.STUDY",
    "fedknn.targets": "fedknn.targets.STUDY",
    "fedknn.replay": "fedknn.validation.STUDY",
    "fedpnn.table7": "fedpnn.table7.TABLE7",
    "fedpnn.sensitivity": "fedpnn.sensitivity.SENSITIVITY",
    "fedpnn.real": "fedpnn.real.REAL",
    "fedpnn.noniid": "fedpnn.real.NONIID",
    "fedpnn.privacy": "fedpnn.privacy.PRIVACY",
    "knnper.table2": "knnper.tables.TABLE2",
    "knnper.table3": "knnper.tables.TABLE3",
    "knnper.claims": "knnper.tables.CLAIMS",
    "knnper.pool": "knnper.tables.POOL",
    "knnper.concept_shift": "knnper.tables.CONCEPT",
    "knnper.shakespeare": "knnper.tables.ROLES",
    "knnper.lambda": "knnper.memory.LAMBDA",
    "knnper.k": "knnper.memory.K",
    "knnper.sigma": "knnper.memory.SIGMA",
    "knnper.capacity": "knnper.capacity.CAPACITY",
    "knnper.hardware": "knnper.memory.HARDWARE",
    "knnper.compression": "knnper.compression.COMPRESSION",
    "knnper.quality": "knnper.quality.QUALITY",
    "knnper.drift": "knnper.drift.DRIFT",
    "knnper.membership": "knnper.membership.MEMBERSHIP",
}
"""Module and variable of each experiment, within this package."""


def find_study(name: str) -> Study:
    """Return the experiment with a name.

    Raises
    ------
    KeyError
        If the name is unknown.
    """
    module, _, variable = EXPERIMENTS[name].rpartition(".")
    found: Study = getattr(import_module(f"experiments.{module}"), variable)
    return found
