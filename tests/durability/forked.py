"""Real daemons in numbers: each forked by a zygote, in a run of a few steps, judged to the bit."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from andread.rundir import checkpoint, companion
from andread.rundir.layout import RunDirectory
from tests.durability.disks import command
from tests.durability.zygote import Process, Zygote
from tests.process.harness import Daemon, copy_run, entries

STEPS = 8
EVERY = 2
ENDLESS = 1_000_000


class Forked(Daemon):
    """One `andread` process, forked; its stderr in `log`, which need not lie on its disk."""

    process: Process  # type: ignore[assignment]

    def __init__(
        self, zygote: Zygote, run: RunDirectory, log: Path, *arguments: str, **options: Any
    ) -> None:
        self.run = run
        self.log = log
        log.touch()
        self.process = zygote.start("daemon", "--run", run.path, *arguments, output=log, **options)


@contextlib.contextmanager
def forked(
    zygote: Zygote, run: RunDirectory, log: Path, *arguments: str, **options: Any
) -> Iterator[Forked]:
    """Run a daemon that does not outlive the block."""
    daemon = Forked(zygote, run, log, *arguments, **options)
    try:
        yield daemon
    finally:
        daemon.kill()


def lived(
    zygote: Zygote, run: RunDirectory, log: Path, *arguments: str, **options: Any
) -> tuple[int, str]:
    """Run a daemon to its end; return its exit code and what it said."""
    log.unlink(missing_ok=True)
    with forked(zygote, run, log, *arguments, **options) as daemon:
        code = daemon.wait(60)
    return code, daemon.stderr()


def set_run(run: RunDirectory, **values: int) -> None:
    """Change keys of [run] in run.toml."""
    lines = run.settings.read_text(encoding="utf-8").splitlines()
    for key, value in values.items():
        lines = [f"{key} = {value}" if line.startswith(f"{key} =") else line for line in lines]
    run.settings.write_text("\n".join(lines) + "\n", encoding="utf-8")


def unsound(run: RunDirectory, reference: RunDirectory, whole: bool = True) -> list[str]:
    """Return how `run` differs from the undisturbed `reference`; `whole`: it has gone as far."""
    found = []
    for step in run.checkpoint_steps():
        path = run.checkpoint(step)
        try:
            vouched = companion.read(run.companion(step))
            if checkpoint.read_image(path, step, vouched.n_params) != vouched.sha256:
                found.append(f"{path.name} is not what its companion vouches for")
        except Exception as error:
            found.append(f"{path.name}: {error}")
        twin = reference.checkpoint(step)
        if twin.exists() and twin.read_bytes() != path.read_bytes():
            found.append(f"{path.name} is not bit for bit that of the undisturbed run")
    known, here = entries(reference), entries(run)
    if here != known[: len(here)]:
        found.append("the history is not that of the undisturbed run")
    if whole:
        if len(here) != len(known):
            found.append(f"the history has {len(here)} entries, not {len(known)}")
        if max(run.checkpoint_steps()) != max(reference.checkpoint_steps()):
            found.append("the last checkpoint is missing")
        found += [f"left over: {item.name}" for item in run.path.glob("*.tmp-*")]
    return found


def copied(run: RunDirectory, directory: Path, **values: int) -> RunDirectory:
    copy = copy_run(run, directory)
    set_run(copy, **values)
    command("sync", "--file-system", directory)  # as what prepares a run does for each file
    return copy


def told(daemon: Forked, kind: str, **fields: Any) -> list[dict[str, Any]]:
    """Return the events of `kind` in what the daemon said."""
    said = daemon.stderr()
    whole = said[: said.rfind("\n") + 1]
    lines = (line for line in whole.splitlines() if line.startswith("{"))
    found = (json.loads(line) for line in lines)
    return [
        event
        for event in found
        if event["event"] == kind and all(event.get(k) == v for k, v in fields.items())
    ]


def reference(daemons: Zygote, run: RunDirectory, place: Path, steps: int) -> RunDirectory:
    """Return the undisturbed run of as many steps."""
    twin = copied(run, place / "twin", steps=steps, checkpoint_every=ENDLESS)
    with forked(daemons, twin, place / "twin.log") as daemon:
        assert daemon.wait() == 0, daemon.stderr()
    return twin
