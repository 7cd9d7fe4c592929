"""Have a checkpoint written now, and wait until it is durable."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Iterator

import click

from andread.rundir import clock, events, lock, presence, requests
from andread.rundir.errors import BusyError
from andread.rundir.layout import RunDirectory
from andread.rundir.presence import Presence
from andread.rundir.requests import Request
from andrectl import loose, render, supervisor

_LIFE = 24 * 3600.0
"""Seconds that a request lives when nothing limits the wait."""


@click.command()
@click.option(
    "--at",
    type=click.Choice(["step", "cadence"]),
    default="step",
    show_default=True,
    help="At the next step boundary, or at the next regular checkpoint with its audit.",
)
@click.option("--no-pin", is_flag=True, help="Leave the checkpoint to retention.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Withdraw the request after this long. Default: wait for the answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the acknowledgement as JSON.")
@click.pass_obj
def command(run: RunDirectory, at: str, no_pin: bool, timeout: float | None, as_json: bool) -> None:
    """Have a checkpoint written now, and wait until it is durable.

    Leaves a request, sends SIGUSR1, and prints the step, path and SHA-256 that the daemon
    acknowledges. The checkpoint is pinned, so that retention keeps it; training goes on.
    """
    owner = _owner(run)
    request = Request(
        id=f"snapshot-{secrets.token_hex(6)}",
        boot=owner.boot,
        pid=owner.pid,
        ticks=owner.ticks,
        expires=clock.boot_seconds() + (_LIFE if timeout is None else timeout),
        at=at,
        pin=not no_pin,
    )
    event = _acknowledged(run, request, timeout)
    if as_json:
        render.json({"run": str(run.path), "pinned": request.pin, **event})
        return
    click.echo(f"step {event['step']:,}\n{event['path']}\nsha256 {event['sha256']}")
    step = event["step"]
    if request.pin:
        render.next_step(f"andrectl checkpoints --unpin {step} gives it back to retention")
    else:
        render.next_step(f"andrectl checkpoints --pin {step} would keep it")


def _owner(run: RunDirectory) -> Presence:
    """Return what the daemon of `run` tells about itself; `NotRunning` if there is none."""
    deadline = clock.boot_seconds() + 10
    while (pid := lock.holder(run.lock)) is not None:
        told = presence.read(run.lock)
        if told.pid == pid and told.boot == clock.boot_id():
            return told
        if clock.boot_seconds() > deadline:
            raise BusyError(
                f"pid {pid} holds the run but does not say who it is",
                "it may be another andrectl at work; try again in a moment",
            )
        time.sleep(supervisor.POLL)
    raise supervisor.NotRunning(
        f"{run.path} is not running: there is nothing newer than its last checkpoint",
        "andrectl checkpoints lists what is there; andrectl start goes on training",
    )


def _acknowledged(run: RunDirectory, request: Request, timeout: float | None) -> supervisor.Event:
    """Place `request`, signal, and return the acknowledgement."""
    offset = loose.file_size(run.events)
    found: list[supervisor.Event] = []
    with _placed(run, request):
        pid = lock.signal_holder(run.lock, signal.SIGUSR1)

        def answered() -> bool:
            gone = pid != request.pid or lock.holder(run.lock) != pid  # before the last reading
            said = list(events.read(run.events, offset))
            found.extend(
                event
                for event in said
                if event.get("id") == request.id and event["event"] in ("acknowledged", "refused")
            )
            if gone and not found:
                raise _gone(request.pid, supervisor.last(said, "stopped"))
            return bool(found)

        supervisor.wait(
            answered,
            timeout,
            supervisor.Narrator(run, request.pid),
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


def _gone(pid: int, stopped: supervisor.Event) -> supervisor.NotRunning:
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
