"""Deterministic Hypothesis profile without deadline, the folder of real data, and servers."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.service.servers import pgvector, postgres

__all__ = ["data_folder", "pgvector", "postgres"]

settings.register_profile("fedneighbors", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("fedneighbors")


@pytest.fixture(scope="session")
def data_folder():
    """Return the folder of real data; without it fail in CI, else skip."""
    stated = os.environ.get("FEDNEIGHBORS_DATA", "")
    folder = Path(stated)
    if stated and folder.is_dir():
        return folder
    reason = f"FEDNEIGHBORS_DATA is {stated!r}; set it to the folder that holds tabular and images"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
