"""Any file of a run damaged in any way: refused with a reason, or passed over and told.

Never a traceback, never more time or memory than it takes, never a start from zero, never a history
that is not the run's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from andread.rundir import errors
from andread.rundir.layout import RunDirectory
from tests.durability.conftest import Tally
from tests.durability.cuts import copy_of
from tests.durability.damage import KINDS
from tests.durability.forked import STEPS, Forked, forked, told
from tests.durability.readers import COMMANDS
from tests.durability.zygote import Zygote
from tests.process.harness import entries

FILES = (
    *("run.toml", "policy.json", "tokenizer.json", "data/topics.json", "data/topics.train.bin"),
    *("data/topics.validation.bin", "step_000006.bin", "step_000006.json", "step_000004.bin"),
    *("step_000004.json", ".loss.json", ".samples.json", ".state.json", ".events.json", ".lock"),
    *(".pivot.lock", ".pivot.json", "requests/asked.json", "pins/step_000004", "andread.log"),
    *("archive/pivot_000004/manifest.json", "archive/pivot_000004/.state.json"),
)
NOT_FOR_DAEMONS = {"andread.log", "archive/pivot_000004/.state.json", ".pivot.json"}
"""What a daemon does not look at."""
CODES = {
    *(errors.OK, errors.DATA, errors.NO_INPUT, errors.CANNOT_CREATE, errors.IO),
    *(errors.CONFIG, errors.TEMPORARY, errors.PERMISSION),
}
RECORDED = 6
SECONDS = 30
MOST_MEMORY = 1 << 30
"""Beyond what the daemon had when it was born."""


def damaged(worn: RunDirectory, memory: Path, name: str) -> Iterator[tuple[str, RunDirectory]]:
    """Yield copies of the run `worn` with the file `name` damaged in each of all ways."""
    for seed, (kind, damage) in enumerate(KINDS.items()):
        run = copy_of(worn, memory / "run")
        damage(run.path / name, seed)
        yield kind, run


@pytest.mark.parametrize("name", [name for name in FILES if name not in NOT_FOR_DAEMONS])
def test_a_daemon_on_a_damaged_file(
    daemons: Zygote,
    worn: RunDirectory,
    worn_lived: RunDirectory,
    memory: Path,
    tally: Tally,
    name: str,
) -> None:
    cases, found = 0, []
    for kind, run in damaged(worn, memory, name):
        log = memory / "log"
        log.unlink(missing_ok=True)
        with forked(daemons, run, log) as daemon:
            code = daemon.wait(SECONDS)
        wrong = unlawful(daemon, code, name)
        if code == errors.OK:
            wrong += not_gone_on(run, worn_lived, daemon, name, kind)
        found += [f"{name} {kind}: {what}" for what in wrong]
        cases += 1
    tally("fuzz cases", cases)
    tally("violations", len(found))
    assert not found, found[:6]


def unlawful(daemon: Forked, code: int, name: str) -> list[str]:
    """Return what is wrong with how it ended."""
    said = daemon.stderr()
    wrong = ["a traceback: " + said[-900:]] if "Traceback" in said else []
    if code not in CODES:
        wrong.append(f"exit code {code}: {said[-900:]}")
    if code and not said.strip():
        wrong.append(f"exit code {code} without a word")
    if daemon.process.memory > MOST_MEMORY:
        wrong.append(f"it took {daemon.process.memory >> 20} MiB")
    return wrong


def not_gone_on(
    run: RunDirectory, undisturbed: RunDirectory, daemon: Forked, name: str, kind: str
) -> list[str]:
    """Return what is wrong with a run that went on."""
    started = told(daemon, "started")
    here, known = entries(run), entries(undisturbed)
    if [entry["step"] for entry in here] != list(range(1, len(here) + 1)) or len(here) < RECORDED:
        return ["the history is not one entry a step"]
    if not started:
        return ["it did not say that it started"]
    if started[0]["step"] == 0:
        return ["it began at zero"]
    wrong = []
    if here[:RECORDED] != known[:RECORDED]:
        wrong.append("what was recorded has changed")
    if name not in ("run.toml", "data/topics.train.bin"):  # these say what is trained from here on
        if here != known:
            wrong.append("it went on to another history")
        if run.checkpoint(STEPS).read_bytes() != undisturbed.checkpoint(STEPS).read_bytes():
            wrong.append("it went on to other bits")
    passed_over = name.startswith("step_000006") and started[0]["step"] != RECORDED
    if passed_over and not (told(daemon, "rejected", step=RECORDED) or told(daemon, "swept")):
        wrong.append("it passed a checkpoint over without a word")
    return wrong


@pytest.mark.parametrize("name", FILES)
def test_andrectl_reads_a_damaged_file(
    light: Zygote, worn: RunDirectory, memory: Path, tally: Tally, name: str
) -> None:
    cases, found = 0, []
    for kind, run in damaged(worn, memory, name):
        output = memory / "output"
        output.unlink(missing_ok=True)
        process = light.start("readers", run.path, output=output)
        code = process.wait(SECONDS)
        lines = output.read_text().splitlines()
        if code or len(lines) != len(COMMANDS):
            found.append(f"{name} {kind}: ended with {code} after {len(lines)}: {lines[-1:]}")
        for line in lines:
            command, exit_code, stdout, stderr, trouble = json.loads(line)
            what = f"{name} {kind}: andrectl {command}: exit code {exit_code}"
            if trouble or exit_code not in CODES | {errors.STOPPED, errors.UNKNOWN}:
                found.append(f"{what} {trouble} {stderr}")
            elif exit_code in (errors.OK, errors.STOPPED) and "--json" in command:
                if not isinstance(json.loads(stdout), dict):
                    found.append(f"{what}: {stdout[:200]}")
            elif exit_code not in (errors.OK, errors.STOPPED) and not (stdout + stderr).strip():
                found.append(f"{what} without a word")
        cases += len(lines)
    tally("fuzz cases", cases)
    tally("violations", len(found))
    assert not found, found[:6]
