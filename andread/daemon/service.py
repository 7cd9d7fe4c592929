"""One life of the daemon, from taking the lock to the event that says how it ended."""

from __future__ import annotations

import faulthandler
import traceback
from dataclasses import dataclass
from typing import Any, Final

from andread import __version__
from andread.daemon.notify import Notifier
from andread.daemon.report import DaemonReporter
from andread.daemon.signals import Signals
from andread.daemon.supervision import supervisor
from andread.rundir import errors
from andread.rundir.early import EarlyRead
from andread.rundir.errors import AndreadError, BusyError, DivergedError
from andread.rundir.layout import RunDirectory
from andread.rundir.lock import RunLock
from andread.rundir.run_toml import read_settings

LOCK_WAIT: Final = 30.0
"""Seconds that a daemon waits for the run's lock: a pivot may hold it for a moment."""


@dataclass(frozen=True)
class Options:
    """What an operator says at a start."""

    accept_history: bool = False
    """Go on although the history is not what the checkpoint vouches for."""
    device: str = ""
    """Train on this kind of device from now on: cpu or cuda."""


def serve(run: RunDirectory, signals: Signals, options: Options) -> int:
    """Train `run`; return the exit code. Raises `AndreadError` before the lock is held."""
    faulthandler.enable()
    manager = Notifier()
    signals.on_stop = manager.stopping
    manager.loading()
    try:
        lock = RunLock.acquire(run.lock, LOCK_WAIT, signals.stopping)
    except BusyError:
        if signals.stopping():
            return errors.OK
        raise
    with lock:
        reporter = DaemonReporter(run, lock, supervisor(), manager)
        reporter.say(f"andread {__version__}, {run.path}: loading")
        signals.on_stop = lambda: _stopping(manager, reporter)
        why, code, detail = _live(run, options, lock, signals, manager, reporter)
        reporter.tell(phase="stopped", exit_code=code, why=why)
        if code != errors.OK:
            manager.status(why)
        reporter.event("stopped", why=why, exit_code=code, **detail)
    return code


def _live(
    run: RunDirectory,
    options: Options,
    lock: RunLock,
    signals: Signals,
    manager: Notifier,
    reporter: DaemonReporter,
) -> tuple[str, int, dict[str, Any]]:
    """Return why training ended, the exit code, and what else there is to tell."""
    trainer = None
    try:
        settings = read_settings(run.settings)
        reporter.log_every = settings.run.log_every
        early = EarlyRead(run)
        from andread.daemon import startup  # the heavy one: torch

        if signals.stopping():
            return "asked to stop while starting", errors.OK, {}
        trainer = startup.assemble(run, settings, options, lock, signals, reporter, early)
        if trainer is None:
            return "asked to stop while starting", errors.OK, {}
        manager.ready()
        outcome = trainer.train()
        if outcome == "finished":
            reporter.event("finished", step=trainer.step)
        why = "finished" if outcome == "finished" else "asked to stop"
        return why, errors.OK, {"step": trainer.step}
    except AndreadError as error:
        failure = error
    except Exception as error:
        failure = translate(error)
    step = {"step": trainer.step} if trainer is not None else {}
    if isinstance(failure, DivergedError):
        reporter.event("diverged", detail=failure.message, **step)
    reporter.say(f"andread: {failure.message}" + (f"\n  {failure.hint}" if failure.hint else ""))
    return failure.message, failure.exit_code, {**step, "hint": failure.hint}


def _stopping(manager: Notifier, reporter: DaemonReporter) -> None:
    """Tell at once that a stop has been heard; runs in the thread of the signals."""
    manager.stopping()
    reporter.phase("stopping", "the step in flight and its checkpoint")
    reporter.say("stopping at the next step boundary; a second Ctrl-C gives up at once")


class DeviceFault(AndreadError):  # noqa: N818 - named after what happened
    """The device or its driver failed, or is out of memory."""

    exit_code = errors.OS_FAULT


class InternalFault(AndreadError):  # noqa: N818
    """A fault of ours."""

    exit_code = errors.SOFTWARE


def translate(error: Exception) -> AndreadError:
    """Turn what a library raised into an error that says what to do."""
    import torch

    if isinstance(error, OSError):
        return errors.from_os_error(error, "training")
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return DeviceFault(
            f"out of memory: {error}", "lower [engine] micro_batch, which changes no trajectory"
        )
    if isinstance(error, RuntimeError) and ("CUDA" in str(error) or "cuDNN" in str(error)):
        return DeviceFault(
            f"the device failed: {error}", "see dmesg; the run resumes from its last checkpoint"
        )
    traceback.print_exception(error)
    return InternalFault(
        f"internal error: {type(error).__name__}: {error}",
        "please report it with the lines above; the run resumes from its last checkpoint",
    )
