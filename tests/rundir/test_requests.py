"""Requests: served only by the daemon they ask, and each void one told apart."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from andread.rundir import clock, requests
from andread.rundir.clock import ProcessIdentity
from andread.rundir.layout import RunDirectory
from andread.rundir.requests import Request
from tests.rundir.helpers import STRANGERS, fill, put_stranger, python, temporaries

OWN = ProcessIdentity.own()


@pytest.fixture
def empty(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def asking(request_id: str = "a", **changes: Any) -> Request:
    fields: dict[str, Any] = {
        "id": request_id,
        "boot": OWN.boot,
        "pid": OWN.pid,
        "ticks": OWN.ticks,
        "expires": clock.boot_seconds() + 60,
    }
    return Request(**(fields | changes))


def test_it_goes_round(empty: RunDirectory) -> None:
    wanted = asking(at="cadence", hold=True, pin=True)
    assert requests.take(empty, OWN) == ([], {})
    requests.write(empty, wanted)
    assert requests.take(empty, OWN) == ([wanted], {})
    assert requests.take(empty, OWN) == ([wanted], {}), "it stays until it is served"
    assert temporaries(empty.requests) == []
    requests.discard(empty, "a")
    requests.discard(empty, "a")
    assert requests.take(empty, OWN) == ([], {})


def test_another_process_asks(empty: RunDirectory) -> None:
    script = """
import sys
from andread.rundir import clock, requests
from andread.rundir.layout import RunDirectory
pid = int(sys.argv[2])
requests.write(RunDirectory(sys.argv[1]), requests.Request(
    "b", clock.boot_id(), pid, clock.start_ticks(pid), clock.boot_seconds() + 60))
"""
    done = python(script, empty.path, os.getpid())
    assert done.returncode == 0, done.stderr
    lawful, void = requests.take(empty, OWN)
    assert [request.id for request in lawful] == ["b"] and void == {}


def test_all_lawful_ones_are_served_in_order(empty: RunDirectory) -> None:
    for name in ("c", "a", "b"):
        requests.write(empty, asking(name))
    requests.write(empty, asking("old", expires=0.5))
    lawful, void = requests.take(empty, OWN)
    assert [request.id for request in lawful] == ["a", "b", "c"]
    assert void == {"old": "it has expired"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"boot": "another"}, "it asks another daemon"),
        ({"pid": OWN.pid + 1}, "it asks another daemon"),
        ({"ticks": OWN.ticks - 1}, "it asks another daemon"),  # the pid was recycled
        ({"expires": 0.0}, "it has expired"),
        ({"id": "b"}, "it calls itself b"),
        ({"id": "../a"}, "letters, digits, - and _"),
        ({"id": "x" * 65}, "letters, digits, - and _"),
        ({"id": ""}, "letters, digits, - and _"),
        ({"id": "a\n"}, "letters, digits, - and _"),
        ({"at": "never"}, "must be one of step, cadence"),
        ({"hold": 1}, "expected true or false"),
        ({"pid": str(OWN.pid)}, "expected a whole number"),
        ({"expires": None}, "expected a number"),
        ({"later": 1}, 'unknown key "later"'),
    ],
)
def test_void_ones_are_told_apart(
    empty: RunDirectory, changes: dict[str, Any], reason: str
) -> None:
    empty.requests.mkdir()
    table = dataclasses.asdict(asking()) | changes
    empty.request("a").write_text(json.dumps(table))
    lawful, void = requests.take(empty, OWN)
    assert lawful == []
    assert list(void) == ["a"] and reason in void["a"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\0" * 100, "not valid JSON"),
        (b"[" * 60_000, "not valid JSON"),
        (b"{}", '"id" is missing'),
        (b"[]", "expected a table"),
        (b"null", "expected a table"),
        (b'"id"', "expected a table"),
        (b'["id","boot","pid","ticks","expires"]', "expected a table"),
        (b" " * 70_000, "more than 65,536"),
        (b'{"id":"a","boot":"b","pid":1,"ticks":1,"expires":1e999}', ""),
    ],
)
def test_damaged_ones_are_void(empty: RunDirectory, data: bytes, reason: str) -> None:
    empty.requests.mkdir()
    empty.request("a").write_bytes(data)
    requests.write(empty, asking("b"))
    lawful, void = requests.take(empty, OWN)
    assert [request.id for request in lawful] == ["b"], "one bad request spoils no other"
    assert reason in void["a"]


@pytest.mark.parametrize("kind", STRANGERS)
def test_no_regular_file_is_void_and_can_be_removed(empty: RunDirectory, kind: str) -> None:
    empty.requests.mkdir()
    put_stranger(empty.request("a"), kind)
    lawful, void = requests.take(empty, OWN)
    assert lawful == []
    assert "not a regular file" in void["a"]
    requests.discard(empty, "a")
    assert requests.take(empty, OWN) == ([], {})


def test_directory_with_something_in_it_stops_nobody(empty: RunDirectory) -> None:
    (empty.request("a") / "deeper").mkdir(parents=True)
    assert "not a regular file" in requests.take(empty, OWN)[1]["a"]
    requests.discard(empty, "a")
    assert (empty.request("a") / "deeper").exists()


def test_names_that_no_event_could_carry_are_not_requests(empty: RunDirectory) -> None:
    empty.requests.mkdir()
    for name in (b"\xff.json", b"a b.json", b".json", b"x.json.tmp-0a1b2c3d", b"README"):
        with open(os.fsencode(empty.requests) + b"/" + name, "wb"):  # noqa: PTH123 - bytes
            pass
    assert requests.take(empty, OWN) == ([], {})


def test_full_disk_leaves_no_half_request(tmpfs: Callable[[str], Path]) -> None:
    disk = tmpfs("16k")
    run = RunDirectory(disk)
    run.requests.mkdir()
    fill(disk)
    with pytest.raises(OSError, match="No space"):
        requests.write(run, asking())
    assert list(run.requests.iterdir()) == []
