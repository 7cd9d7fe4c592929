"""The order of the protocol as the kernel sees it, on the daemon as anybody starts it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from andread.rundir.layout import RunDirectory
from tests.durability.forked import set_run
from tests.process.harness import copy_run
from tests.rundir.helpers import ROOT

CALLS = "openat,write,pwrite64,pwritev,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat"


@dataclass(frozen=True)
class Seen:
    """One call on a file of the run: its place in time, what it was, of which file."""

    place: int
    call: str
    name: str
    other: str = ""
    """Where a rename leads."""


def seen_in(trace: str, run: RunDirectory) -> tuple[list[Seen], list[tuple[int, str]]]:
    """Return the calls on the run's files, and what was written to stderr, in order.

    A call of one thread that another interrupted counts where it ended: strace shows both halves.
    """
    calls, said = [], []
    inside = re.escape(str(run.path))
    begun: dict[str, str] = {}
    for place, line in enumerate(trace.splitlines()):
        pid, _, rest = line.partition(" ")
        rest = rest.strip()
        if rest.endswith("<unfinished ...>"):
            begun[pid] = rest.removesuffix("<unfinished ...>")
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>", rest):
            rest = begun.pop(pid, "") + rest[resumed.end() :]
        if not (match := re.match(r"(\w+)\(", rest)):
            continue
        if match[1] == "write" and re.match(r"write\(2", rest):
            said.append((place, rest))
            continue
        names = re.findall(rf'{inside}/?([^">]*)[">]', rest)
        if names and not rest.rstrip().endswith(")") and "= -1" not in rest:
            names = [re.sub(r"\.tmp-\w+", ".tmp", name) or "." for name in names]
            calls.append(Seen(place, match[1], names[0], names[-1]))
    return calls, said


def test_write_sync_rename_sync_acknowledge_prune(short_run: RunDirectory, tmp_path: Path) -> None:
    run = copy_run(short_run, tmp_path / "run")
    set_run(run, keep_last=2)
    trace = tmp_path / "trace"
    done = subprocess.run(
        [
            *("strace", "-f", "-y", "--seccomp-bpf", "-s", "4000", "-o", trace),
            *("-e", f"trace={CALLS}", "-e", "signal=none"),
            *(sys.executable, "-m", "andread", "--run", run.path),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    calls, said = seen_in(trace.read_text(errors="replace"), run)
    for step in (2, 4, 6, 8):
        binary, beside = f"step_{step:06d}.bin", f"step_{step:06d}.json"

        def places(call: str, name: str, other: str = "") -> list[int]:
            return [
                c.place
                for c in calls
                if c.call.startswith(call) and c.name == name and (not other or c.other == other)
            ]

        def first(call: str, name: str, after: int, other: str = "") -> int:
            found = [place for place in places(call, name, other) if place > after]
            assert found, f"no {call} of {name} behind line {after}"
            return found[0]

        written = max(places("pwrite", f"{binary}.tmp"))
        named = first("rename", f"{binary}.tmp", written, binary)
        synced = [p for p in places("fsync", f"{binary}.tmp") if written < p < named]
        assert synced, "the file's bytes first, then its name"
        durable = first("fsync", ".", named)
        own_entry = max(p for p in places("pwrite", ".loss.json") if p < written)
        history = [p for p in places("fsync", ".loss.json") if own_entry < p < named]
        assert history, "what it vouches for first"
        told = max(places("pwrite", f"{beside}.tmp"))
        besides = first("rename", f"{beside}.tmp", told, beside)
        assert [p for p in places("fsync", f"{beside}.tmp") if told < p < besides]
        assert history[0] < told and first("fsync", ".", besides) < named, "its companion before it"
        mark = f'\\"event\\":\\"checkpoint\\",\\"step\\":{step},'
        event = [c.place for c in calls if c.call == "write" and c.name == ".events.json"]
        acknowledged = [p for p, line in said if mark in line]
        assert acknowledged and acknowledged[0] > durable, "vouched for once it is durable"
        assert [p for p in event if durable < p <= acknowledged[0]], "and recorded so"
        gone = f"step_{step - 4:06d}"
        if step >= 4:
            pruned = first("unlink", f"{gone}.bin", 0)
            assert pruned > acknowledged[0], "nothing goes before"
            assert pruned < first("fsync", ".", pruned) < first("unlink", f"{gone}.json", 0)
    events = [json.loads(line) for line in run.events.read_text().splitlines()]
    assert [e["step"] for e in events if e["event"] == "checkpoint"] == [0, 2, 4, 6, 8]
