"""Every call by which this project touches the disk in a run directory, in one place.

They are the operating system's own functions under one roof, looked up here at each call. So a
test can make each of them fail, record their order, or end the process at one of them, by
replacing the names in `CALLS`; and nothing else in `andread` or `andrectl` may write in a run
directory past them (a test reads the sources for it).

Nothing here decides anything: `files` is what the other modules ask, and it says what is durable.
"""

from __future__ import annotations

import os
from typing import Final

open = os.open
pread = os.pread
preadv = os.preadv
fstat = os.fstat
stat = os.stat
lstat = os.lstat
listdir = os.listdir

write = os.write
pwrite = os.pwrite
posix_fallocate = os.posix_fallocate
ftruncate = os.ftruncate
fsync = os.fsync
rename = os.rename
link = os.link
unlink = os.unlink
mkdir = os.mkdir
rmdir = os.rmdir

READING: Final = ("open", "pread", "preadv", "fstat", "stat", "lstat", "listdir")
WRITING: Final = (
    "write",
    "pwrite",
    "posix_fallocate",
    "ftruncate",
    "fsync",
    "rename",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
)
CALLS: Final = READING + WRITING
