"""A life at full speed, for power to be cut in it; what it vouches for goes to its output."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from andread.rundir import commit
from andread.rundir.layout import RunDirectory
from tests.durability import mutants
from tests.durability.life import Life

PINS = 3


def writer(directory: str, parameters: str, seed: str, mutant: str = "") -> None:
    """Live in `directory` until killed, or until the disk goes away; SIGTERM ends it well."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    rng = random.Random(int(seed))

    def vouch(what: str, step: int) -> None:
        os.write(1, f"{what} {step}\n".encode())

    with mutants.in_force(mutant):
        _live(Life(RunDirectory(directory), vouch, int(parameters)), rng, asked)
    os._exit(0)


def _live(life: Life, rng: random.Random, asked: list[Any]) -> None:
    life.begin()
    life.settle()
    number = 0
    while not asked:
        number += 1
        for _ in range(rng.randint(1, 4)):
            life.train()
        what = rng.random()
        if what < 0.7:
            life.save()
        elif what < 0.85:
            life.snapshot(number)
            for step in sorted(commit.pinned(life.run))[:-PINS]:
                os.write(1, f"unpin {step}\n".encode())
                commit.unpin(life.run, step)
        elif what < 0.92:
            life.pivot(rng.random())
        else:
            life.view_again()
        if life.troubles:
            os.write(1, f"trouble {life.step}\n".encode())
            os._exit(1)
    life.end()


def neighbour(directory: str) -> None:
    """Sync other files on the same disk without a rest: it carries the writer's along, or not."""
    number = 0
    while True:
        number += 1
        path = Path(directory, f"neighbour-{number % 7}")
        with path.open("wb") as stream:
            stream.write(os.urandom(1 << 14))
            stream.flush()
            os.fsync(stream.fileno())
        time.sleep(0.002)
