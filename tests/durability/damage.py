"""Everything that may befall a file of a run directory while nobody looks."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.rundir.helpers import STRANGERS, put_stranger

ABSURD: tuple[Any, ...] = (
    *(-1, 0, 2**31, 2**63, 2**64, 10**400, 1e308, -0.0, True, None),
    *("", "x" * 100_000, "\x00", "../../etc", "NaN", [], {}, [[]], {"": {}}),
)
_HUGE = 3 << 30


def _bytes(change: Callable[[bytes, random.Random], bytes]) -> Callable[[Path, int], None]:
    def damage(path: Path, seed: int) -> None:
        data = path.read_bytes()
        path.write_bytes(change(data, random.Random(seed)))

    return damage


def _flip(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data or b"\0")
    for _ in range(rng.choice([1, 1, 8])):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _hole(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice([1, 64, 512, 4096]))
    return data[:start] + bytes(end - start) + data[end:]


def _absurd(data: bytes, rng: random.Random) -> bytes:
    """Put an absurd value somewhere into what is JSON, or an absurd count into what is not."""
    try:
        value = json.loads(data)
    except ValueError:
        absurd = rng.choice([2**31 - 1, -1, 0, -(2**31)]).to_bytes(4, "little", signed=True)
        place = rng.choice([0, 4])
        return data[:place] + absurd + data[place + 4 :]
    places = list(_places(value))
    if not places:
        return json.dumps(rng.choice(ABSURD)).encode()
    holder, key = rng.choice(places)
    if rng.random() < 0.2 and isinstance(holder, dict):
        holder["surprise"] = holder.pop(key)
    else:
        holder[key] = rng.choice(ABSURD)
    return json.dumps(value).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(value, (dict, list)):
        return
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        yield from _places(value[key])


def _swapped(path: Path, seed: int) -> None:
    """Change places with another file of the run, of its kind and beside it where there is one."""
    near = [p for p in path.parent.iterdir() if p.is_file() and p != path]
    others = sorted(near or [p for p in path.parent.parent.iterdir() if p.is_file()])
    alike = [p for p in others if p.suffix == path.suffix]
    other = random.Random(seed).choice(alike or others)
    mine, its = path.read_bytes(), other.read_bytes()
    path.write_bytes(its)
    other.write_bytes(mine)


def _huge(path: Path, seed: int) -> None:
    os.truncate(path, _HUGE)


def _stranger(kind: str) -> Callable[[Path, int], None]:
    return lambda path, seed: put_stranger(path, kind)


KINDS: dict[str, Callable[[Path, int], None]] = {
    "emptied": _bytes(lambda data, rng: b""),
    "cut short": _bytes(lambda data, rng: data[: rng.randrange(len(data) + 1)]),
    "without its last byte": _bytes(lambda data, rng: data[:-1]),
    "extended by zeros": _bytes(lambda data, rng: data + bytes(rng.choice([1, 4096]))),
    "extended by garbage": _bytes(lambda data, rng: data + rng.randbytes(rng.choice([1, 4096]))),
    "twice over": _bytes(lambda data, rng: data * 2),
    "flipped": _bytes(_flip),
    "flipped again": _bytes(_flip),
    "zeroed": _bytes(lambda data, rng: bytes(len(data))),
    "with a hole of zeros": _bytes(_hole),
    "garbage": _bytes(lambda data, rng: rng.randbytes(len(data))),
    "absurd": _bytes(_absurd),
    "absurd again": _bytes(_absurd),
    "absurd once more": _bytes(_absurd),
    "in UTF-16": _bytes(lambda data, rng: data[:9999].decode("latin-1").encode("utf-16")),
    "with a byte order mark": _bytes(lambda data, rng: b"\xef\xbb\xbf" + data),
    "in Latin-1": _bytes(lambda data, rng: b'{"name": "caf\xe9"}'),
    "deep lists": _bytes(lambda data, rng: b"[" * 200_000),
    "deep tables": _bytes(lambda data, rng: b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "a number": _bytes(lambda data, rng: b"7\n"),
    "a list": _bytes(lambda data, rng: b"[1, null, [], {}]\n"),
    "null": _bytes(lambda data, rng: b"null"),
    "gone": lambda path, seed: path.unlink(),
    "swapped": _swapped,
    "of 3 GiB": _huge,
    **{f"a {kind}": _stranger(kind) for kind in STRANGERS},
}
