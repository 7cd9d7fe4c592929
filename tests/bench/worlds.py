"""Worlds of real text to compare curricula in: sources, and which of them validation aims at.

- `example`: what `andrectl init --example` writes: code, docstrings, prose; all three are aimed at.
- `polluted`: the same three, and four that are not aimed at: random base64, the prose with its
  words shuffled, one licence over and over, and a source of a few windows.
- `sixteen`: the code in five parts, docstrings, prose and C headers are aimed at; beside them
  three of noise, two of shuffled words, two repetitive ones and a tiny one.

Every text comes from the installation of Python, so any machine can repeat a comparison; machines
with another Python get other figures.
"""

from __future__ import annotations

import base64
import random
import shutil
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from andrectl.example import write_example

LENGTH: Final = 400_000
"""Bytes of a source that is made up."""


@dataclass(frozen=True)
class World:
    """The sources of a world, as `[[source]]` tables, and the names that validation aims at."""

    sources: tuple[dict[str, object], ...]
    target: tuple[str, ...]


def example(root: Path) -> World:
    """Return the corpus of the example."""
    tables = write_example(root)
    return World(tuple(tables), tuple(str(table["name"]) for table in tables))


def polluted(root: Path) -> World:
    """Return the example among four sources that are not aimed at."""
    real = example(root)
    made = [_noise(root, 1), _shuffled(root, "prose", 1), _repeated(root, 1), _tiny(root)]
    return World((*real.sources, *made), real.target)


def sixteen(root: Path) -> World:
    """Return eight sources that are aimed at among eight that are not."""
    _, docstrings, prose = example(root).sources
    parts: list[dict[str, object]] = []
    for place, path in enumerate(sorted((root / "corpus/code").rglob("*.py"))):
        folder = root / "corpus" / f"code-{place % 5}"
        folder.mkdir(exist_ok=True)
        shutil.copy(path, folder / f"{place:04}.py")
    for place in range(5):
        parts.append(_text(f"code-{place}", f"corpus/code-{place}"))
    headers = root / "corpus" / "headers"
    shutil.copytree(sysconfig.get_path("include"), headers)
    real = [*parts, docstrings, prose, _text("headers", "corpus/headers")]
    made = [_noise(root, place) for place in (1, 2, 3)]
    made += [_shuffled(root, name, place) for place, name in enumerate(("prose", "code-0"), 1)]
    made += [_repeated(root, place) for place in (1, 2)]
    made.append(_tiny(root))
    return World((*real, *made), tuple(str(table["name"]) for table in real))


WORLDS: Final[dict[str, Callable[[Path], World]]] = {
    "example": example,
    "polluted": polluted,
    "sixteen": sixteen,
}


def _text(name: str, path: str) -> dict[str, object]:
    return {"name": name, "format": "text", "paths": [path]}


def _write(root: Path, name: str, text: str) -> dict[str, object]:
    """Write `text` in documents of 4,000 characters; return the source's table."""
    folder = root / "corpus" / name
    folder.mkdir()
    for place in range(0, len(text), 4000):
        (folder / f"{place:08}.txt").write_text(text[place : place + 4000], encoding="utf-8")
    return _text(name, f"corpus/{name}")


def _noise(root: Path, place: int) -> dict[str, object]:
    data = random.Random(place).randbytes(LENGTH * 3 // 4)
    return _write(root, f"noise-{place}", base64.b64encode(data).decode())


def _shuffled(root: Path, of: str, place: int) -> dict[str, object]:
    """Return a source of the words of another, in random order."""
    files = sorted(path for path in (root / "corpus" / of).rglob("*") if path.is_file())
    words = " ".join(path.read_text(encoding="utf-8") for path in files).split()
    random.Random(place).shuffle(words)
    return _write(root, f"shuffled-{place}", " ".join(words)[:LENGTH])


def _repeated(root: Path, place: int) -> dict[str, object]:
    """Return a source of one stretch of the licence, again and again."""
    licence = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")
    text = licence[(place - 1) * 4000 : place * 4000]
    return _write(root, f"repeated-{place}", text * (LENGTH // len(text)))


def _tiny(root: Path) -> dict[str, object]:
    """Return a source of the last few thousand characters of the licence."""
    licence = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")
    return _write(root, "tiny", licence[-3000:])
