"""The entry point: handlers first, then everything else; errors to exit codes.

Only light modules are imported at the top: a signal that arrives while torch is being imported
must find its handler.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from andread import __version__
from andread.daemon.notify import notify
from andread.daemon.signals import Signals
from andread.rundir import errors
from andread.rundir.errors import AndreadError, MissingError
from andread.rundir.layout import RunDirectory


def main() -> NoReturn:
    """Run the daemon and exit with its code."""
    signals = Signals()
    signals.install()
    try:
        code = _main(signals)
    except AndreadError as error:
        code = _tell(error)
    except OSError as error:
        code = _tell(errors.from_os_error(error, "opening the run"))
    except Exception as error:
        traceback.print_exception(error)
        code = errors.SOFTWARE
    if code == errors.OK:
        notify("READY=1")  # a clean end before training counts as a start that failed otherwise
    sys.stderr.flush()
    os._exit(code)  # nothing is left to flush, and threads of libraries cannot stall the exit


def _main(signals: Signals) -> int:
    arguments = _arguments()
    if signals.stopping():
        return errors.OK
    run = RunDirectory(Path(arguments.run).absolute())
    if not run.exists():
        raise MissingError(
            f"{run.path} is no run directory: it has no run.toml", "andrectl init makes one"
        )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when torch is imported
    from andread.daemon.service import Options, serve

    return serve(run, signals, Options(arguments.accept_history, arguments.device))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="andread",
        description="Train the run in DIR until it is finished or asked to stop.",
        epilog="SIGTERM: checkpoint and exit. SIGUSR1: checkpoint and go on.",
    )
    parser.add_argument(
        "--run",
        metavar="DIR",
        default=os.environ.get("ANDREAD_RUN", "."),
        help="the run directory (default: $ANDREAD_RUN, else the current directory)",
    )
    parser.add_argument(
        "--accept-history",
        action="store_true",
        help="go on although the loss history is not what the checkpoint vouches for",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="",
        help="train on this kind of device from now on",
    )
    parser.add_argument("--version", action="version", version=f"andread {__version__}")

    def refuse(message: str) -> NoReturn:
        parser.print_usage(sys.stderr)
        print(f"andread: {message}", file=sys.stderr)
        os._exit(errors.USAGE)

    parser.error = refuse  # type: ignore[method-assign]
    return parser.parse_args()


def _tell(error: AndreadError) -> int:
    """Show an error and its hint; return its exit code."""
    hint = f"\n  {error.hint}" if error.hint else ""
    notify(f"STATUS={error.message}")
    print(f"andread: {error.message}{hint}", file=sys.stderr)
    return error.exit_code
