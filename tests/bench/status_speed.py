"""How fast `andrectl status` starts, against what its libraries alone take to import.

    python -m tests.bench.status_speed [repeats]

Prints the median wall time of each, taken in turns, and their ratio; the design allows 3.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from andread.rundir import events, files
from andread.rundir.history import CLOSING, OPENING, SEPARATOR
from andread.rundir.layout import RunDirectory
from andrectl.template import RECIPES, run_toml

ENTRIES = 200_000
ROOT = Path(__file__).parents[2]


def write_run(path: Path) -> RunDirectory:
    """Make a run of `ENTRIES` recorded steps and the events that go with them."""
    run = RunDirectory(path)
    source = {"name": "web", "paths": ["web.txt"]}
    toml = run_toml("andrea-nano", RECIPES["andrea-nano"], 1, [source])
    files.replace(run.settings, toml.encode())
    line = b'{"step":%d,"loss":3.125,"lr":0.001,"grad_norm":0.5,"pulls":{"web":48},"t":1.5}'
    body = SEPARATOR.join(line % step for step in range(1, ENTRIES + 1))
    files.replace(run.history, OPENING + body + CLOSING)
    event = events.emit(run.events, "checkpoint", step=100, sha256="0" * 64, reasons=["cadence"])
    one = run.events.read_bytes()
    assert event
    files.replace(run.events, one * (2 * ENTRIES // 100))
    return run


def seconds(*arguments: str) -> float:
    """Return the wall time of one Python process."""
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return time.perf_counter() - begun


def main() -> None:
    """Measure and print."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder))
        floor, status = [], []
        for _ in range(repeats + 1):
            floor.append(seconds("-c", "import click, orjson, psutil"))
            status.append(seconds("-m", "andrectl", "status", "--run", str(run.path)))
        base, whole = statistics.median(floor[1:]), statistics.median(status[1:])
    print(f"import click, orjson, psutil   {base * 1000:7.1f} ms")
    print(f"andrectl status                {whole * 1000:7.1f} ms  ratio {whole / base:.2f}")


if __name__ == "__main__":
    main()
