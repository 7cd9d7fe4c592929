import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from andread.rundir import lock
from andread.rundir.layout import RunDirectory
from tests.process.harness import copy_run, make_run, train
from tests.process.pivoting import EVERY, andrectl, set_steps


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


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run that will not end by itself; copy it."""
    return make_run(tmp_path_factory.mktemp("endless") / "run", steps=1_000_000, every=EVERY)


@pytest.fixture
def live(endless: RunDirectory, tmp_path: Path) -> Iterator[RunDirectory]:
    """A copy of it that is being trained."""
    run = copy_run(endless, tmp_path / "run")
    andrectl(run, "start")
    yield run
    lock.signal_holder(run.lock, signal.SIGKILL)


@pytest.fixture(scope="session")
def at_30(prepared: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of 30 steps that is finished; copy it."""
    run = copy_run(prepared, tmp_path_factory.mktemp("at_30") / "run")
    set_steps(run, 30)
    train(run)
    return run


@pytest.fixture
def still(at_30: RunDirectory, tmp_path: Path) -> Iterator[RunDirectory]:
    """That run after 30 of its 60 steps."""
    run = copy_run(at_30, tmp_path / "still")
    set_steps(run, 60)
    yield run
    lock.signal_holder(run.lock, signal.SIGKILL)
