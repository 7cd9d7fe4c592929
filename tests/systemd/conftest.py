"""One machine for all cases, with the units installed and a prepared run to copy."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from andread.rundir.layout import RunDirectory
from tests.process.harness import make_run
from tests.systemd.guest import Service, make, make_obedient
from tests.systemd.machine import Machine, why_not


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """A booted machine with andread installed."""
    if why := why_not():
        pytest.skip(f"NOT TESTED: andread under a real systemd, for {why}")
    disk = Path(tempfile.mkdtemp(prefix="andread-machine-"))
    made = Machine(disk)
    try:
        make(made, "install-files")
        made.boot()
        yield made
    finally:
        made.cut()
        shutil.rmtree(disk, ignore_errors=True)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A prepared run that trains for a long time; copy it."""
    return make_run(tmp_path_factory.mktemp("template"), steps=100_000, every=50, keep=3)


@pytest.fixture
def service(
    machine: Machine, template: RunDirectory, request: pytest.FixtureRequest
) -> Iterator[Service]:
    """A run of its own under the state directory, and the service that trains it."""
    name = request.node.originalname.removeprefix("test_").replace("_", "-")[:40]
    made = Service(machine, template, name)
    yield made
    made.discard()


@pytest.fixture
def obedient(service: Service) -> Service:
    """A run whose model does what it is told: see `guest.order`."""
    make_obedient(service)
    return service
