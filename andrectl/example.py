"""A corpus that every machine with Python has: the standard library's code, docstrings and prose.

    corpus/code/PATH.py           a module without its docstrings, nothing else stripped
    corpus/docstrings.jsonl       a line a module: {"module": …, "text": its docstrings}
    corpus/prose/TOPIC.txt        the language reference that `help()` shows, the licence, …

A docstring that stands verbatim in the code all the same (in a comment, in a string), or is so
short that it might, is left out of the docstrings: so training on code gives none of their
validation split away.
"""

from __future__ import annotations

import ast
import itertools
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

_LEFT_OUT: Final = frozenset(
    [
        "__pycache__",
        "idlelib",
        "lib2to3",
        "lib-dynload",
        "pydoc_data",
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idle_test",
        "turtledemo",
    ]
)
"""Folders of the standard library that are tests, data, or not its own."""

_PROSE: Final = ("LICENSE.txt", "LICENSE", "*/README*", "*/NEWS.txt", "*/*.rst", "*/CREDITS.txt")
"""Prose that may lie beside the code, by what packager made this Python."""

_SHORTEST: Final = 24
"""Docstrings shorter than this, in characters, stand in code by chance ("self == other")."""


def write_example(directory: Path) -> list[dict[str, Any]]:
    """Write the corpus under DIRECTORY/corpus; return its `[[source]]` tables.

    The same Python gives the same files. Paths in the tables are relative to DIRECTORY.
    """
    library = Path(sysconfig.get_path("stdlib"))
    corpus = directory / "corpus"
    modules = dict(_modules(library))
    for name, (text, _) in modules.items():
        _write(corpus / "code" / name, text)
    told = {text for _, found in modules.values() for text in found if len(text) >= _SHORTEST}
    told -= quoted(told, (text for text, _ in modules.values()))
    lines = []
    for name, (_, found) in modules.items():
        if text := "\n\n".join(each for each in found if each in told):
            lines.append(orjson.dumps({"module": name, "text": text}) + b"\n")
    _write(corpus / "docstrings.jsonl", b"".join(lines).decode())
    for name, text in _prose(library):
        _write(corpus / "prose" / name, text)
    return [
        {"name": "code", "format": "text", "paths": ["corpus/code"]},
        {"name": "docstrings", "format": "jsonl", "paths": ["corpus/docstrings.jsonl"]},
        {"name": "prose", "format": "text", "paths": ["corpus/prose"]},
    ]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


def _modules(library: Path) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Yield each module's name, its code without docstrings, and its docstrings."""
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if _LEFT_OUT.isdisjoint(name.parts):
            try:
                with tokenize.open(path) as stream:  # heeds the encoding line
                    yield str(name), parted(stream.read())
            except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
                continue


def parted(text: str) -> tuple[str, list[str]]:
    """Part a module into its code without docstrings and its docstrings, in order.

    The lines of a docstring go. Where it shares a line, or was the whole body, `...` takes its
    place, so that the code still parses.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old modules
        tree = ast.parse(text)
    lines = text.encode().splitlines(keepends=True)  # as bytes: a form feed ends no line
    starts = [0, *itertools.accumulate(map(len, lines))]
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found: list[tuple[int, int, str, bool]] = []
    for node in ast.walk(tree):
        if not isinstance(node, owners) or not (docstring := ast.get_docstring(node)):
            continue
        place = node.body[0]
        assert place.end_lineno is not None and place.end_col_offset is not None
        begin = starts[place.lineno - 1] + place.col_offset
        end = starts[place.end_lineno - 1] + place.end_col_offset
        alone = len(node.body) == 1 and not isinstance(node, ast.Module)
        found.append((begin, end, docstring, alone))
    found.sort()
    data = b"".join(lines)
    kept, behind = [], 0
    for begin, end, _, alone in found:
        line = data.rfind(b"\n", 0, begin) + 1
        whole = not data[line:begin].strip() and data[end : end + 1] in (b"\n", b"")
        kept.append(data[behind : line if whole and not alone else begin])
        kept.append(b"" if whole and not alone else b"...")
        behind = end + 1 if whole and not alone else end
    kept.append(data[behind:])
    return b"".join(kept).decode(), [docstring for _, _, docstring, _ in found]


def quoted(docstrings: Iterable[str], code: Iterable[str]) -> set[str]:
    """Return those of `docstrings` that stand verbatim in one of the texts `code`.

    One pass over the code, looking up every stretch of `_SHORTEST` characters: searching for
    thousands of docstrings one by one takes a minute.
    """
    by_head: dict[str, list[str]] = {}
    for docstring in docstrings:
        by_head.setdefault(docstring[:_SHORTEST], []).append(docstring)
    found: set[str] = set()
    for text in code:
        for place in range(len(text) - _SHORTEST + 1):
            candidates = by_head.get(text[place : place + _SHORTEST])
            if candidates:
                found.update(each for each in candidates if text.startswith(each, place))
    return found


def _prose(library: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each piece of prose."""
    from pydoc_data.topics import topics

    for topic, text in sorted(topics.items()):
        yield re.sub(r"\W", "_", f"{topic}") + ".txt", text
    for path in sorted({path for pattern in _PROSE for path in library.glob(pattern)}):
        if _LEFT_OUT.isdisjoint(path.relative_to(library).parts):
            name = "_".join(path.relative_to(library).parts)
            yield f"{name.removesuffix('.txt')}.txt", path.read_text("utf-8", "replace")
