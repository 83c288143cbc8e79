"""Location of the source and its modules."""

import importlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedneighbors"

# The Flower apps are scripts: importing them builds apps.
SCRIPTS = (
    "fedneighbors.methods.flynn.flower_app",
    "fedneighbors.methods.fedpnn.flower_app",
    "fedneighbors.methods.knnper.flower_app",
)


def sources():
    return sorted(SOURCE.rglob("*.py"))


def module_name(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(folder=SOURCE):
    """Import all modules below a folder that have no side effects."""
    names = [module_name(path) for path in sorted(folder.rglob("*.py"))]
    return [importlib.import_module(name) for name in names if name not in SCRIPTS]
