"""What the durability tests share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from andread.rundir import files, requests
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import read_policies
from andread.rundir.requests import Request
from tests.conftest import FIGURES, PROPERTY
from tests.durability.disks import own_mounts
from tests.durability.forked import EVERY, STEPS, lived, set_run
from tests.durability.zygote import Zygote, zygote
from tests.process.harness import copy_run, make_run
from tests.process.pivoting import andrectl

Tally = Callable[[str, int], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/durability/" in str(item.path):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Count something for the line at the end."""

    def count(what: str, number: int = 1) -> None:
        assert what in FIGURES
        request.node.user_properties.append((PROPERTY + what, number))

    return count


@pytest.fixture(scope="session", autouse=True)
def _mounts() -> None:
    own_mounts()


@pytest.fixture(scope="session")
def light() -> Iterator[Zygote]:
    """Forks lives without training."""
    with zygote(torch=False) as made:
        yield made


@pytest.fixture(scope="session")
def daemons() -> Iterator[Zygote]:
    """Forks real daemons, with torch warm."""
    with zygote(torch=True) as made:
        yield made


@pytest.fixture(scope="session")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A prepared run of a few steps that has not begun; copy it."""
    run = make_run(tmp_path_factory.mktemp("short"), STEPS, EVERY, keep=2)
    set_run(run, sample_every=4)
    return run


@pytest.fixture(scope="session")
def short_lived(
    short_run: RunDirectory, daemons: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> RunDirectory:
    """That run at its end, undisturbed, with all its checkpoints; look at it only."""
    place = tmp_path_factory.mktemp("short_lived")
    run = copy_run(short_run, place / "run")
    set_run(run, keep_last=100)
    assert lived(daemons, run, place / "log")[0] == 0
    return run


@pytest.fixture(scope="session")
def half_lived(
    short_run: RunDirectory, daemons: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> RunDirectory:
    """That run killed in its fifth step or so, to be replayed and ended; copy it."""
    place = tmp_path_factory.mktemp("half_lived")
    run = copy_run(short_run, place / "run")
    set_run(run, steps=5, checkpoint_every=3)
    assert lived(daemons, run, place / "log")[0] == 0
    run.checkpoint(5).unlink()
    run.companion(5).unlink()
    set_run(run, steps=STEPS, checkpoint_every=EVERY)
    return run


@pytest.fixture(scope="session")
def worn(
    short_run: RunDirectory, daemons: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> RunDirectory:
    """That run after six of its steps, with all that a run can have; copy it."""
    place = tmp_path_factory.mktemp("worn")
    run = copy_run(short_run, place / "run")
    set_run(run, steps=4)
    assert lived(daemons, run, place / "log")[0] == 0
    andrectl(run, "pivot", "--caps", "topics=0.9")
    set_run(run, steps=6)
    assert lived(daemons, run, place / "log")[0] == 0
    set_run(run, steps=STEPS)
    journal = {"target": {"algorithm": "uniform"}, "base": read_policies(run.policy)[-1].id}
    files.replace_json(run.pivot, {**journal, "at": "step", "running": False, "t": 1.0})
    asked = Request("asked", "another boot", 1, 1, 1.0)
    requests.write(run, asked)
    return run


@pytest.fixture(scope="session")
def worn_lived(
    worn: RunDirectory, daemons: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> RunDirectory:
    """That run at its end; look at it only."""
    place = tmp_path_factory.mktemp("worn_lived")
    run = copy_run(worn, place / "run")
    assert lived(daemons, run, place / "log")[0] == 0
    return run


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, gone afterwards."""
    place = Path(tempfile.mkdtemp(prefix="andread-durability-", dir="/dev/shm"))
    yield place
    shutil.rmtree(place, ignore_errors=True)
