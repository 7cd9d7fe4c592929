"""One table of exit codes, one tree of errors, and a hint for whatever the kernel says."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from andread.rundir import errors
from andread.rundir.errors import AndreadError, from_os_error
from tests.rundir.helpers import ROOT, fill, python


def tree(root: type[AndreadError] = AndreadError) -> list[type[AndreadError]]:
    below = [cls for cls in root.__subclasses__() if cls.__module__ == errors.__name__]
    return [root] + [deeper for cls in below for deeper in tree(cls)]


def test_every_error_has_an_exit_code_of_the_table() -> None:
    assert len(tree()) > 8
    for cls in tree():
        assert cls.exit_code in errors.EXIT_CODES
        assert cls.exit_code not in (errors.OK, errors.STOPPED, errors.UNKNOWN)


def test_every_constant_is_in_the_table_once() -> None:
    constants = [v for k, v in vars(errors).items() if k.isupper() and isinstance(v, int)]
    assert sorted(constants) == sorted(errors.EXIT_CODES)
    assert all(errors.EXIT_CODES.values())


def test_codes_follow_sysexits_and_stay_clear_of_shells_and_systemd() -> None:
    for code, name in [
        (errors.USAGE, "EX_USAGE"),
        (errors.DATA, "EX_DATAERR"),
        (errors.NO_INPUT, "EX_NOINPUT"),
        (errors.SOFTWARE, "EX_SOFTWARE"),
        (errors.OS_FAULT, "EX_OSERR"),
        (errors.CANNOT_CREATE, "EX_CANTCREAT"),
        (errors.IO, "EX_IOERR"),
        (errors.TEMPORARY, "EX_TEMPFAIL"),
        (errors.PERMISSION, "EX_NOPERM"),
        (errors.CONFIG, "EX_CONFIG"),
    ]:
        assert code == getattr(os, name)
    assert all(code < 126 for code in errors.EXIT_CODES if code != errors.INTERRUPTED)


def test_message_and_hint_travel_with_the_error() -> None:
    error = errors.DataError("it is torn", "restore it")
    assert (str(error), error.message, error.hint) == ("it is torn", "it is torn", "restore it")
    assert errors.DataError("it is torn").hint == ""


@pytest.mark.parametrize(
    ("number", "cls"),
    [
        (errno.EACCES, errors.AccessError),
        (errno.EPERM, errors.AccessError),
        (errno.ENOENT, errors.MissingError),
        (errno.ENOTDIR, errors.MissingError),
        (errno.ENOSPC, errors.StorageError),
        (errno.EDQUOT, errors.StorageError),
        (errno.EROFS, errors.StorageError),
        (errno.EIO, errors.StorageError),
        (errno.EFBIG, errors.StorageError),
        (errno.ENOMEM, errors.BusyError),
        (errno.EMFILE, errors.BusyError),
        (errno.ENFILE, errors.BusyError),
    ],
)
def test_os_error_becomes_what_a_user_can_act_on(number: int, cls: type[AndreadError]) -> None:
    found = from_os_error(OSError(number, os.strerror(number), "/somewhere/x"), "writing x")
    assert type(found) is cls
    assert found.message == f"writing x: {os.strerror(number)} (/somewhere/x)"
    assert found.hint


def test_os_error_without_a_number_keeps_its_words() -> None:
    assert from_os_error(OSError("it made no progress"), "writing").message == (
        "writing: it made no progress"
    )


def test_a_full_disk_says_to_free_space(tmpfs: Callable[[str], Path]) -> None:
    disk = tmpfs("16k")
    fill(disk)
    with pytest.raises(OSError) as caught:
        (disk / "x").write_bytes(b"1" * 4096)
    assert "free some space" in from_os_error(caught.value, "writing").hint


def test_a_read_only_disk_says_so(
    tmpfs: Callable[[str], Path], read_only: Callable[[Path], None]
) -> None:
    disk = tmpfs("16k")
    read_only(disk)
    with pytest.raises(OSError) as caught:
        (disk / "x").write_bytes(b"1")
    assert "read-only" in from_os_error(caught.value, "writing").hint


def test_the_protocol_imports_neither_torch_nor_click_nor_systemd() -> None:
    folder = ROOT / "andread" / "rundir"
    modules = [f"andread.rundir.{path.stem}" for path in folder.glob("[a-z]*.py")]
    assert len(modules) > 12
    heavy = "{'torch', 'numpy', 'click', 'systemd'}"
    done = python(f"import sys, {', '.join(modules)}\nprint({heavy} & set(sys.modules))")
    assert done.stdout.strip() == "set()", done.stderr
