"""Steps computed again: a real daemon on a scratch copy, its record beside the run's.

The copy has run.toml with another end, the policies, tokenizer and tokens, one checkpoint with its
companion, and the history up to that checkpoint. Files that a daemon never writes are shared where
the file system allows; so what retention deletes meanwhile stays until the copy is removed. The run
itself is only read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from andread.rundir import companion, events, history
from andread.rundir.companion import Companion
from andread.rundir.errors import DataError, MissingError, UsageError, from_os_error
from andread.rundir.layout import RunDirectory
from andread.rundir.manifest import SPLITS
from andread.rundir.run_toml import read_settings
from andread.rundir.sharing import share
from andrectl import checks, render, supervisor
from andrectl.checks import Looked
from andrectl.rewriting import with_values

_NEVER: Final = 2**31 - 1
_COMPARED: Final = ("loss", "lr", "grad_norm", "pulls", "skipped")
_ATTEMPTS: Final = 3
_NICE: Final = 10
_LOG_LINES: Final = 5
_DIFFERS: Final = (
    "the same steps gave other bits: suspect memory, disk or driver, or a record that was changed"
)
Entry = dict[str, Any]


class Replay:
    """`steps` recorded steps computed again, from the checkpoint of `start` or a chosen one."""

    def __init__(
        self,
        run: RunDirectory,
        steps: int,
        start: int | None = None,
        scratch: Path | None = None,
        device: str | None = None,
    ) -> None:
        self.run = run
        self.steps = steps
        self.start = start
        self.scratch = scratch
        self.device = device

    def look(self) -> Looked:
        """Compute the steps again and return what came of it; the copy is gone afterwards."""
        for attempt in range(1, _ATTEMPTS + 1):
            with _terminable(), _folder(self.run, self.scratch) as folder:
                try:
                    begin = self._choose()
                    if begin is None:
                        return checks.skipped("no checkpoint has recorded steps after it")
                    end = min(begin.step + self.steps, history.last_step(self.run.history))
                    copy = _copy(self.run, folder, begin, end)
                except FileNotFoundError:
                    if attempt == _ATTEMPTS or self.start is not None:
                        raise
                    continue  # retention took the checkpoint meanwhile
                return self._compute(copy, begin, end)
        raise AssertionError("every attempt returns or raises")

    def _choose(self) -> Companion | None:
        """Return the companion to begin from: asked for, or the newest with steps after it."""
        last = history.last_step(self.run.history)
        if self.start is not None:
            if not self.run.checkpoint(self.start).exists():
                kept = ", ".join(map(str, self.run.checkpoint_steps()[-8:])) or "none"
                raise MissingError(
                    f"there is no checkpoint of step {self.start}", f"the newest ones: {kept}"
                )
            if self.start >= last:
                raise UsageError(
                    f"no step is recorded after step {self.start}", "begin from an earlier one"
                )
            return companion.read(self.run.companion(self.start))
        found = None
        for step in reversed(self.run.checkpoint_steps()):
            if step >= last or (found is not None and step + self.steps > last):
                continue
            try:
                chosen = companion.read(self.run.companion(step))
            except (DataError, FileNotFoundError):
                continue
            if step + self.steps <= last:
                return chosen
            found = chosen
        return found

    def _compute(self, copy: RunDirectory, begin: Companion, end: int) -> Looked:
        """Run the daemon on the copy and compare its record with the run's."""
        told = f"steps {begin.step + 1:,}…{end:,} from {self.run.checkpoint(begin.step).name}"
        render.note(f"computing {told} again in {copy.path}")
        code = _train(copy, ["--device", self.device] if self.device else [])
        if code != 0:
            lines = copy.log.read_text(encoding="utf-8", errors="replace").splitlines()
            said = " / ".join(line.strip() for line in lines[-_LOG_LINES:] if line.strip())
            return checks.failed(f"the daemon ended with {code}: {said}", _advice(code), code)
        other = next((e for e in events.read(copy.events) if e["event"] == "environment"), None)
        problem = self._difference(copy, begin, end)
        if problem and other is not None:
            changes = ", ".join(sorted(other.get("changes", {})))
            return checks.warning(
                f"{told}: {problem}; but not in the environment they were recorded in ({changes})",
                "replay where the run was trained, to tell drift from damage",
            )
        if problem:
            return checks.failed(f"{told}: {problem}", _DIFFERS)
        tail = ""
        if (kept := self._kept(end)) is not None:
            tail = f", and so is {self.run.checkpoint(end).name} (sha256 {kept[:12]}…)"
        return checks.ok(f"{told}: bit for bit what was recorded{tail}")

    def _kept(self, step: int) -> str | None:
        """Return the hash that the run records of its own checkpoint of `step`, if it has one."""
        try:
            return companion.read(self.run.companion(step)).sha256
        except (DataError, FileNotFoundError):
            return None

    def _difference(self, copy: RunDirectory, begin: Companion, end: int) -> str:
        """Return the first difference between what was recorded and what was computed now."""
        recorded = _between(self.run.history, begin.step, end)
        computed = _between(copy.history, begin.step, end)
        for step in range(begin.step + 1, end + 1):
            old, new = recorded.get(step), computed.get(step)
            if old is None or new is None:
                return f"step {step} is not recorded" if old is None else f"step {step} was not run"
            for key in _COMPARED:
                if old.get(key) != new.get(key):
                    return f"at step {step} {key} {old.get(key)} became {new.get(key)}"
        kept = self._kept(end)
        made = companion.read(copy.companion(end)).sha256
        if kept is not None and kept != made:
            name = self.run.checkpoint(end).name
            return f"{name} should have SHA-256 {made[:12]}…, it is recorded with {kept[:12]}…"
        return ""


def _advice(code: int) -> str:
    """Return what to do about a daemon on the copy that ended with `code`."""
    if code < 0:
        return "somebody, or the out-of-memory killer, ended it: try again with more memory free"
    return "a start of the run would end so too; where the device is absent, name another: --device"


def _between(path: Path, after: int, upto: int) -> dict[int, Entry]:
    """Return the entries of the steps after `after`, up to `upto`."""
    return {e["step"]: e for e in history.read(path) if after < e.get("step", 0) <= upto}


@contextlib.contextmanager
def _folder(run: RunDirectory, scratch: Path | None) -> Iterator[Path]:
    """Make a folder for the copy, beside the run where that may be, and remove it afterwards.

    The copy lies one deeper, so that nobody takes it for one of the runs there.
    """
    name = f".{run.path.absolute().name}.verify-"
    try:
        folder = Path(tempfile.mkdtemp(prefix=name, dir=scratch or run.path.absolute().parent))
    except OSError as error:
        if scratch is not None:
            raise from_os_error(error, "making the scratch copy") from error
        folder = Path(tempfile.mkdtemp(prefix=name, dir="/var/tmp"))  # large, unlike /tmp
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy(run: RunDirectory, folder: Path, begin: Companion, end: int) -> RunDirectory:
    """Make the scratch copy, to begin at the checkpoint of `begin` and to end at step `end`."""
    copy = RunDirectory(folder / "run")
    copy.path.mkdir()
    copy.data.mkdir()
    shared = [run.checkpoint(begin.step), run.companion(begin.step), run.policy, run.tokenizer]
    for name in read_settings(run.settings).source_names():
        shared += [run.manifest(name), *(run.tokens(name, split) for split in SPLITS)]
    for path in shared:
        share(path, copy.path / path.relative_to(run.path))
    changes = {"run.steps": end, "run.checkpoint_every": _NEVER, "run.sample_every": _NEVER}
    text = run.settings.read_text(encoding="utf-8")
    copy.settings.write_text(with_values(text, changes), encoding="utf-8")
    if history.copy_prefix(run.history, copy.history, begin.history_length) is None:
        raise DataError(
            f"the history is shorter than step {begin.step} vouches for",
            "the check of the history tells more",
        )
    return copy


def _train(copy: RunDirectory, options: list[str]) -> int:
    """Run a daemon on the copy, nicely, to its end; return its exit code."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "JOURNAL_STREAM")}
    with copy.log.open("ab") as log:
        process = subprocess.Popen(
            supervisor.command(copy, options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=kept | {"ANDREAD_SUPERVISOR": "foreground"},
        )
        try:
            with contextlib.suppress(OSError):  # the run that trains beside it goes first
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
            return process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let a SIGTERM end all this as Ctrl-C does, so that daemon and copy go with it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
