"""Root works under the ids of the run's owner; only root can test that."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.andrectl.test_fork_command import prepare

OWNER = 54321

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def theirs(trained):
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    shutil.copytree(trained.path, place / "run")
    for path in (place / "run", *(place / "run").iterdir()):
        os.chown(path, OWNER, OWNER)
    yield type(trained)(place / "run")
    shutil.rmtree(place)


def test_no_file_of_a_run_becomes_root_s(theirs, python) -> None:
    done = python("-m", "andrectl", "--run", theirs.path, "checkpoints", "--pin", 100)
    assert done.returncode == 0, done.stderr
    owners = {path.stat().st_uid for path in theirs.path.rglob("*")}
    assert theirs.pin(100).exists() and owners == {OWNER}


def test_init_gives_a_run_to_the_owner_of_its_place(theirs, python) -> None:
    source = theirs.path / "web.txt"
    source.touch()
    new = theirs.path / "deep/new"
    done = python("-m", "andrectl", "init", new, "--source", f"web={source}")
    assert done.returncode == 0, done.stderr
    assert {path.stat().st_uid for path in (new, *new.iterdir())} == {OWNER}


def test_a_fork_belongs_to_the_owner_of_its_parent(theirs, python) -> None:
    prepare(theirs)
    for path in (theirs.tokenizer, theirs.data, *theirs.data.iterdir()):
        os.chown(path, OWNER, OWNER)
    closed = theirs.path.parent / "closed"  # root's, who is the owner while he works on the run
    closed.mkdir(mode=0o700)
    refused = python("-m", "andrectl", "--run", theirs.path, "fork", "--into", closed / "fork")
    assert refused.returncode in (66, 77), refused.stderr
    new = theirs.path.parent / "fork"
    refused = python("-m", "andrectl", "--run", theirs.path, "fork", "--into", new)
    assert refused.returncode == 77 and "may not be written to" in refused.stderr
    assert not theirs.pins.exists()
    os.chown(theirs.path.parent, OWNER, OWNER)
    done = python("-m", "andrectl", "--run", theirs.path, "fork", "--into", new)
    assert done.returncode == 0, done.stderr
    for run in (theirs.path, new):
        assert {path.stat().st_uid for path in (run, *run.rglob("*"))} == {OWNER}
