"""Every error a user can cause, each with its exit code and a hint on what to do next.

The exit codes follow sysexits(3) where one fits; `EXIT_CODES` is the table that the
documentation prints and that the systemd units rely on.
"""

from __future__ import annotations

import errno
from typing import ClassVar, Final

from andread.rundir.layout import TEMPORARY_INFIX

OK: Final = 0
STOPPED: Final = 3
UNKNOWN: Final = 4
USAGE: Final = 64
DATA: Final = 65
NO_INPUT: Final = 66
SOFTWARE: Final = 70
OS_FAULT: Final = 71
CANNOT_CREATE: Final = 73
IO: Final = 74
TEMPORARY: Final = 75
PERMISSION: Final = 77
CONFIG: Final = 78
DIVERGED: Final = 80
LAST_WRITE_FAILED: Final = 81
INTERRUPTED: Final = 130

EXIT_CODES: Final[dict[int, str]] = {
    OK: "success; `andrectl status`: the run is running",
    STOPPED: "the run is stopped: `andrectl status` says so, `andrectl snapshot` has nobody to ask",
    UNKNOWN: "`andrectl status`: there is no such run, or its state cannot be told",
    USAGE: "the command line is wrong",
    DATA: "data is damaged or contradicts what was recorded (checkpoint, history, tokens, source)",
    NO_INPUT: "a named file, source or run directory does not exist or cannot be read",
    SOFTWARE: "an internal error; please report it",
    OS_FAULT: "the operating system refused something (memory, processes)",
    CANNOT_CREATE: "an output cannot be created, or is there already",
    IO: "reading or writing failed (full disk, input/output error)",
    TEMPORARY: "temporary: another process holds the run, or a device is absent; try again later",
    PERMISSION: "permission denied",
    CONFIG: "run.toml or policy.json is wrong, or contradicts the run's past",
    DIVERGED: "training diverged; the run halted on its last good checkpoint",
    LAST_WRITE_FAILED: "stopped as asked, but the last checkpoint could not be written",
    INTERRUPTED: "interrupted; a daemon: by a second Ctrl-C, at once",
}


class AndreadError(Exception):
    """Something a user can cause or mend.

    `hint` is one sentence on what to do next; `exit_code` is the process's exit status.
    """

    exit_code: ClassVar[int] = SOFTWARE

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(AndreadError):
    """The command line asks for something that makes no sense."""

    exit_code = USAGE


class DataError(AndreadError):
    """Stored data is damaged, or contradicts what was recorded about it."""

    exit_code = DATA


class MissingError(AndreadError):
    """A named file, source or run directory is not there or cannot be read."""

    exit_code = NO_INPUT


class ExistsError(AndreadError):
    """An output is there already, or cannot be created."""

    exit_code = CANNOT_CREATE


class StorageError(AndreadError):
    """Reading or writing failed: a full disk, an input/output error, a read-only file system."""

    exit_code = IO


class BusyError(AndreadError):
    """Another process holds the run, or a device is absent for now: worth another try."""

    exit_code = TEMPORARY


class AccessError(AndreadError):
    """The file system or the kernel says that we may not."""

    exit_code = PERMISSION


class ConfigError(AndreadError):
    """run.toml or policy.json is wrong, or contradicts the run's past."""

    exit_code = CONFIG


class DivergedError(AndreadError):
    """Too many consecutive steps could not be applied; the run halted on a good checkpoint."""

    exit_code = DIVERGED


class LastWriteError(AndreadError):
    """The run stopped as asked, but its last checkpoint could not be written."""

    exit_code = LAST_WRITE_FAILED


def from_os_error(error: OSError, doing: str) -> AndreadError:
    """Turn an `OSError` met while `doing` something into the error that tells a user what to do."""
    reason = error.strerror or str(error)
    path = str(error.filename or "").split(TEMPORARY_INFIX)[0]  # its random end tells nobody
    name = f" ({path})" if path else ""
    message = f"{doing}: {reason}{name}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return AccessError(message, "check who owns the path and who runs this command")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return MissingError(message, "check the path")
    if error.errno in (errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY):
        return ExistsError(message, "something else stands under that name: move it away")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(message, "free some space on that file system and try again")
    if error.errno == errno.EROFS:
        return StorageError(message, "the file system is read-only: remount it or use another one")
    if error.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return BusyError(message, "the machine is short of memory or files; try again later")
    return StorageError(message, "check the disk (dmesg, smartctl) and try again")
