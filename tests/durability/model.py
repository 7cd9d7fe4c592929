"""What a power cut may leave: a model that promises less than any file system in use.

- fsync of a file makes its bytes and its size durable, not its name
- fsync of a directory makes the names in it durable, not the bytes behind them
- what was not synced may be there or not, each on its own and in any order: names, and the bytes
  of each write, torn at sectors of 512 bytes; what lies beyond the durable end may be zeros or
  garbage
- a rename is atomic: the new name leads to its old file or to the new one
- an fsync that failed leaves its pages clean: no later fsync writes them, unless they are written
  again

So states that ext4 would not leave are judged too (its journal keeps the order of names); those
that it does leave are among them.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.durability.tape import Operation, Tape, Tree

SECTOR = 512
_SUBSETS = 5
"""So many pending names are tried in all combinations."""

Torn = Callable[[int], str]
"""What has become of a sector of an unsynced write: `new`, `old` or `garbage`."""


@dataclass
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[str, int, bytes]] = field(default_factory=list)
    """`write` at, `truncate` to, `allocate` to; in order."""
    live: bytearray = field(default_factory=bytearray)
    """As the processes see it."""

    def change(self, kind: str, at: int, data: bytes = b"") -> None:
        self.pending.append((kind, at, data))
        _apply(self.live, kind, at, data)

    def synced(self) -> None:
        for change in self.pending:
            _apply(self.durable, *change)
        self.pending.clear()

    def after(self, torn: Torn | None) -> bytes:
        """Return the bytes after a cut; None: nothing of what is pending."""
        data = bytearray(self.durable)
        if torn is None:
            return bytes(data)
        for kind, at, piece in self.pending:
            if kind != "write":
                _apply(data, kind, at, piece)
                continue
            first, last = at // SECTOR, (at + len(piece) - 1) // SECTOR
            for sector in range(first, last + 1):
                start, end = max(at, sector * SECTOR), min(at + len(piece), (sector + 1) * SECTOR)
                new = piece[start - at : end - at]
                fate = torn(sector)
                if fate == "old":  # its size may have got there: zeros then
                    new = bytes(data[start:end].ljust(end - start, b"\0"))
                elif fate == "garbage" and start >= len(self.durable):
                    new = b"\xa5" * (end - start)
                _apply(data, "write", start, new)
        return bytes(data)


def _apply(data: bytearray, kind: str, at: int, piece: bytes) -> None:
    if kind == "write":
        if len(data) < at:
            data.extend(bytes(at - len(data)))
        data[at : at + len(piece)] = piece
    elif kind == "truncate":
        del data[at:]
        data.extend(bytes(at - len(data)))
    elif len(data) < at:
        data.extend(bytes(at - len(data)))


@dataclass
class _Directory:
    durable: dict[str, int] = field(default_factory=dict)
    pending: list[tuple[tuple[str, int | None], ...]] = field(default_factory=list)
    """Each change: names and what they lead to then; those of one change come together."""

    def synced(self) -> None:
        self.durable = self.after(range(len(self.pending)))
        self.pending.clear()

    def after(self, chosen: Iterable[int]) -> dict[str, int]:
        names = dict(self.durable)
        for index in sorted(chosen):
            for name, number in self.pending[index]:
                if number is None:
                    names.pop(name, None)
                else:
                    names[name] = number
        return names


class Disk:
    """The durable and the pending part of a directory, as a tape is played into it."""

    def __init__(self, tape: Tape) -> None:
        self.nodes: dict[int, _File | _Directory] = {}
        for name, number in tape.names.items():
            content = tape.before.get(name)
            if content is None:
                self.nodes[number] = _Directory()
            else:
                self.nodes[number] = _File(bytearray(content), [], bytearray(content))
        for name, number in tape.names.items():
            if name:
                parent, _, last = name.rpartition("/")
                self._directory(tape.names[parent]).durable[last] = number

    def _file(self, number: int) -> _File:
        node = self.nodes[number]
        assert isinstance(node, _File)
        return node

    def _directory(self, number: int) -> _Directory:
        node = self.nodes[number]
        assert isinstance(node, _Directory)
        return node

    def play(self, operation: Operation) -> None:
        """Take one operation in."""
        kind, *rest = operation
        if kind == "create":
            where, name, number, what = rest
            self.nodes[number] = _File() if what == "file" else _Directory()
            self._directory(where).pending.append(((name, number),))
        elif kind == "rename":
            where, old, new, number = rest
            self._directory(where).pending.append(((old, None), (new, number)))
        elif kind == "unlink":
            where, name = rest
            self._directory(where).pending.append(((name, None),))
        elif kind == "append":
            file = self._file(rest[0])
            file.change("write", len(file.live), rest[1])
        elif kind in ("write", "truncate", "allocate"):
            self._file(rest[0]).change(kind, *rest[1:])
        elif kind == "fsync":
            self.nodes[rest[0]].synced()
        elif kind == "lost":
            node = self.nodes[rest[0]]
            if isinstance(node, _File):
                node.pending.clear()

    def _choices(self) -> list[tuple[int, int]]:
        """Return each pending change of names: directory and index."""
        return [
            (number, index)
            for number, node in self.nodes.items()
            if isinstance(node, _Directory)
            for index in range(len(node.pending))
        ]

    def _dirty(self) -> list[int]:
        return [n for n, node in self.nodes.items() if isinstance(node, _File) and node.pending]

    def states(self, rng: random.Random, samples: int) -> Iterator[Tree]:
        """Yield what a cut now may leave: the corners one by one, the rest by chance."""
        names, dirty = self._choices(), self._dirty()

        def all_new(_: int) -> str:
            return "new"

        def zeros(_: int) -> str:
            return "old"

        nothing: dict[int, Torn] = {}
        everything: dict[int, Torn] = dict.fromkeys(dirty, all_new)
        sizes: dict[int, Torn] = dict.fromkeys(dirty, zeros)
        if len(names) <= _SUBSETS:
            subsets = [
                set(chosen)
                for size in range(len(names) + 1)
                for chosen in itertools.combinations(names, size)
            ]
        else:
            subsets = [set(), set(names)]
            subsets += [{one} for one in names] + [set(names) - {one} for one in names]
            subsets += [set(names[:end]) for end in range(1, len(names))]
        for chosen in subsets:
            for files in (nothing, everything, sizes) if dirty else (nothing,):
                yield self._tree(chosen, files)
        for one in dirty if len(dirty) > 1 else ():
            yield self._tree(set(names), {one: all_new})
            yield self._tree(set(names), {n: all_new for n in dirty if n != one})
        for _ in range(samples if dirty else 0):
            chosen = {name for name in names if rng.random() < 0.6}
            seed = rng.getrandbits(32)
            torn = {n: _by_chance(seed + n, rng) for n in dirty if rng.random() < 0.8}
            yield self._tree(chosen, torn)

    def _tree(self, chosen: set[tuple[int, int]], files: dict[int, Torn]) -> Tree:
        found: Tree = {}

        def walk(number: int, path: str) -> None:
            directory = self._directory(number)
            indexes = [index for where, index in chosen if where == number]
            for name, child in directory.after(indexes).items():
                node = self.nodes[child]
                if isinstance(node, _Directory):
                    found[path + name] = None
                    walk(child, f"{path}{name}/")
                else:
                    found[path + name] = node.after(files.get(child))

        walk(0, "")
        return found


def _by_chance(seed: int, rng: random.Random) -> Torn:
    weights = rng.choice([(6, 3, 1), (3, 6, 1), (1, 1, 1), (1, 0, 9)])

    def torn(sector: int) -> str:
        return random.Random(seed * 1000 + sector).choices(("new", "old", "garbage"), weights)[0]

    return torn


def build(tree: Tree, directory: Path) -> None:
    """Make `directory` what `tree` says, anew."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, content in tree.items():
        path = directory / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.write_bytes(content)


def digest(tree: Tree) -> bytes:
    """Return what tells one tree from another."""
    found = hashlib.sha256()
    for name in sorted(tree):
        content = tree[name]
        found.update(name.encode() + b"\0" + (b"d" if content is None else b"f" + content) + b"\0")
    return found.digest()
