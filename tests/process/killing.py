"""Run `andrectl` and die, as by SIGKILL, right before or after a named function's n-th call.

python -m tests.process.killing MODULE.FUNCTION before|after N  andrectl's arguments…
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any


def mine(name: str, when: str, number: int) -> None:
    """Replace the function `name` by one that kills this process at its call `number`."""
    path = name.split(".")
    for split in range(len(path) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(path[:split]))
        except ModuleNotFoundError:
            continue
        break
    for part in path[split:-1]:
        owner = getattr(owner, part)
    real: Callable[..., Any] = getattr(owner, path[-1])
    calls = itertools.count(1)

    @functools.wraps(real)
    def deadly(*arguments: Any, **options: Any) -> Any:
        dying = next(calls) == number
        if dying and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **options)
        if dying:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, path[-1], deadly)


if __name__ == "__main__":
    mine(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    from andrectl.cli import main

    main(sys.argv[4:])
