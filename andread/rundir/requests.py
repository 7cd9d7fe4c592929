"""`requests/ID.json`: what a SIGUSR1 asks for, when it asks for more than the default.

A client puts the file in place, then sends the signal. The request names the daemon it is for
and when it expires on the boot clock; a daemon refuses all others by event and removes them.
The acknowledgement is an event that carries the id once the checkpoint is durable.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from dataclasses import dataclass
from typing import Final

from andread.rundir import clock, disk, files
from andread.rundir.clock import ProcessIdentity
from andread.rundir.errors import AndreadError
from andread.rundir.layout import RunDirectory
from andread.rundir.tables import one_of, read_table, setting

_ID: Final = re.compile(r"[0-9a-zA-Z_-]{1,64}")


@dataclass(frozen=True)
class Request:
    """One request for a checkpoint."""

    id: str = setting(check=(lambda v: _ID.fullmatch(v) is not None, "letters, digits, - and _"))
    """Names the request in its acknowledgement."""
    boot: str = setting()
    """The boot of the daemon that is asked."""
    pid: int = setting()
    """Its pid."""
    ticks: int = setting()
    """Its start, in clock ticks since boot."""
    expires: float = setting()
    """Seconds since boot after which the request is void."""
    at: str = setting("step", check=one_of("step", "cadence"))
    """`step`: at the next step boundary. `cadence`: at the next regular checkpoint."""
    hold: bool = setting(False)
    """Whether to run no further step until SIGTERM."""
    pin: bool = setting(False)
    """Whether retention must keep the checkpoint."""


def write(run: RunDirectory, request: Request) -> None:
    """Put `request` in place for the daemon to find when it is signalled."""
    files.make_directory(run.requests)
    files.replace_json(run.request(request.id), dataclasses.asdict(request))


def take(run: RunDirectory, own: ProcessIdentity) -> tuple[list[Request], dict[str, str]]:
    """Return the requests that ask the process `own`, and why the others are void, by name.

    The files stay until `discard`: a request is removed once it is served or refused.
    """
    lawful: list[Request] = []
    void: dict[str, str] = {}
    for name in files.names(run.requests):
        path = run.requests / name
        if path.suffix != ".json" or not _ID.fullmatch(path.stem):
            continue  # nobody could be told about it by that name
        try:
            request = read_table(Request, files.read_json(path, 1 << 16), path.name)
        except FileNotFoundError:
            continue
        except (AndreadError, OSError) as error:
            void[path.stem] = str(error)
            continue
        if request.id != path.stem:
            void[path.stem] = f"it calls itself {request.id}"
        elif ProcessIdentity(request.boot, request.pid, request.ticks) != own:
            void[path.stem] = "it asks another daemon"
        elif request.expires < clock.boot_seconds():
            void[path.stem] = "it has expired"
        else:
            lawful.append(request)
    return lawful, void


def wants_pin(run: RunDirectory, request_id: str) -> bool:
    """Tell whether the request file is still there and asks for a pin."""
    try:
        content = files.read_json(run.request(request_id), 1 << 16)
    except (AndreadError, FileNotFoundError):
        return False
    return isinstance(content, dict) and content.get("pin") is True


def discard(run: RunDirectory, request_id: str) -> None:
    """Remove a request that was served or refused; a directory in its place stays if it is full."""
    path = run.request(request_id)
    if files.is_directory(path, follow=False):
        with contextlib.suppress(OSError):
            disk.rmdir(path)
    else:
        files.remove(path)
