"""Hypothesis profile, tests that share a worker, the folder of real data, and servers."""

import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.service.servers import pgvector, postgres

__all__ = ["data_folder", "pgvector", "postgres"]

settings.register_profile("fedneighbors", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("fedneighbors")

ONE_BY_ONE = ("tests/docs/test_pages.py", "tests/e2e/test_examples.py")


def pytest_collection_modifyitems(items):
    """Start with the longest tests."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/e2e/"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each file to one worker, but pages and examples one by one.

    pytest-xdist 3.8 does not see its own groups with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class FileScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            path = nodeid.split("::")[0]
            return nodeid if path in ONE_BY_ONE else path

    return FileScheduling(config, log)


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


@pytest.fixture
def all_processes_end():
    """Check that no process that the test started is left; pools of other tests may be."""
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before
