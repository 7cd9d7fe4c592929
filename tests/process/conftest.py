from pathlib import Path

import pytest

from andread.rundir.layout import RunDirectory
from tests.process.harness import copy_run, make_run, train


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/process/" in str(item.path):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of 60 steps that has not begun; copy it."""
    return make_run(tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def run(prepared: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A run of 60 steps that has not begun, checkpoints every 10."""
    return copy_run(prepared, tmp_path / "run")


@pytest.fixture(scope="session")
def finished(prepared: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The run of 60 steps, never interrupted; copy it."""
    run = copy_run(prepared, tmp_path_factory.mktemp("finished") / "run")
    train(run)
    return run
