"""Root works in a run under the ids of the run's owner, so that no file there becomes root's."""

from __future__ import annotations

import os
import pwd
from pathlib import Path


def adopt(path: Path) -> None:
    """Become the owner of `path` or of its nearest parent; only root can, and does.

    A daemon started afterwards is the owner's too. Root stays the saved id alone, which no program
    that is executed inherits: it is there to ask the system's manager (`systemd`).
    """
    if os.geteuid() != 0:
        return
    while not path.exists():
        path = path.absolute().parent
    stat = path.stat()
    if stat.st_uid == 0:
        return
    try:
        os.initgroups(pwd.getpwuid(stat.st_uid).pw_name, stat.st_gid)
    except KeyError:  # an owner without an account, as in a container
        os.setgroups([stat.st_gid])
    os.setresgid(stat.st_gid, stat.st_gid, stat.st_gid)
    os.setresuid(stat.st_uid, stat.st_uid, 0)


def was_root() -> bool:
    """Tell whether root is kept as the saved id."""
    return os.getresuid()[2] == 0
