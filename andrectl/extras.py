"""Libraries that not every installation has: imported where they are used, or told how to get."""

from __future__ import annotations

import importlib
from typing import Any

from andread.rundir.errors import ConfigError


def need(module: str, extra: str, what: str) -> Any:
    """Import and return `module`; raise `ConfigError` that names `extra` if it is not installed.

    `what` is what needs it, as the beginning of a sentence.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        library = module.partition(".")[0]
        raise ConfigError(
            f"{what} needs {library}, which is not installed", f"pip install 'andread[{extra}]'"
        ) from None
