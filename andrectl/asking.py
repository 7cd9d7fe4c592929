"""Asking the daemon of a run for a checkpoint, and waiting for its answer."""

from __future__ import annotations

import contextlib
import secrets
import signal
from collections.abc import Callable, Iterator
from typing import Final

from andread.rundir import clock, events, lock, requests
from andread.rundir.errors import BusyError
from andread.rundir.layout import RunDirectory
from andread.rundir.presence import Presence
from andread.rundir.requests import Request
from andrectl import awaiting, loose, supervisor

_LIFE: Final = 24 * 3600.0
"""Seconds that a request lives when nothing limits the wait."""


def owner(run: RunDirectory) -> Presence:
    """Return what the daemon of `run` tells about itself; `NotRunning` if there is none."""
    if (told := supervisor.daemon(run)) is not None:
        return told
    raise supervisor.NotRunning(
        f"{run.path} is not running: there is nothing newer than its last checkpoint",
        "andrectl checkpoints lists what is there; andrectl start goes on training",
    )


def request(
    kind: str,
    whom: Presence,
    timeout: float | None,
    *,
    at: str,
    hold: bool = False,
    pin: bool = False,
) -> Request:
    """Return a request to the daemon `whom`, named after its `kind`."""
    return Request(
        id=f"{kind}-{secrets.token_hex(6)}",
        boot=whom.boot,
        pid=whom.pid,
        ticks=whom.ticks,
        expires=clock.boot_seconds() + (_LIFE if timeout is None else timeout),
        at=at,
        hold=hold,
        pin=pin,
    )


def acknowledged(
    run: RunDirectory,
    request: Request,
    timeout: float | None,
    narrate: Callable[[], None] | None = None,
) -> awaiting.Event:
    """Place `request`, signal, and return the acknowledgement.

    Raises `NotRunning` if the daemon ends before it answers, `BusyError` if it refuses or after
    `timeout` seconds; the request is then withdrawn.
    """
    offset = loose.file_size(run.events)
    found: list[awaiting.Event] = []
    with _placed(run, request):
        there = lock.signal_if_holder(run.lock, request.pid, signal.SIGUSR1)

        def answered() -> bool:
            gone = not there or lock.holder(run.lock) != request.pid  # before the last reading
            said = list(events.read(run.events, offset))
            found.extend(
                event
                for event in said
                if event.get("id") == request.id and event["event"] in ("acknowledged", "refused")
            )
            if gone and not found:
                raise _gone(request.pid, supervisor.last_word(run, request.pid, said))
            return bool(found)

        awaiting.wait(
            answered,
            timeout,
            narrate or awaiting.Narrator(run, request.pid),
            "no acknowledgement: the request is withdrawn",
            "andrectl status tells what the daemon is doing",
        )
    if found[0]["event"] == "refused":
        raise BusyError(
            f"the daemon refused: {found[0].get('why', 'it does not say why')}",
            "andrectl status tells what it is doing; try again",
        )
    return found[0]


@contextlib.contextmanager
def _placed(run: RunDirectory, request: Request) -> Iterator[None]:
    """Keep `request` in place; withdraw it if the wait for its answer ends in any other way."""
    requests.write(run, request)
    try:
        yield
    except BaseException:
        requests.discard(run, request.id)
        raise


def _gone(pid: int, stopped: awaiting.Event) -> supervisor.NotRunning:
    """Return the error for a daemon that ended before it answered."""
    how = (
        f"it stopped after step {stopped.get('step')} ({stopped.get('why')})"
        if stopped
        else "it was killed"
    )
    return supervisor.NotRunning(
        f"the daemon (pid {pid}) ended before it answered: {how}",
        "andrectl checkpoints shows what is durable; andrectl start resumes from the newest",
    )
