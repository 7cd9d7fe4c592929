"""Nothing writes in a run directory past `rundir/disk.py`: the sources are read for it."""

import ast
import os
from pathlib import Path

import andread
import andrectl
from andread.rundir import disk

ROOTS = tuple(Path(package.__file__).parent for package in (andread, andrectl))

EXCEPTIONS = {
    "andread/rundir/disk.py": "the layer itself",
    "andrectl/commands/init.py": "makes the directory, with its parents, before it is a run",
    "andrectl/commands/export.py": "writes what the user names, outside of any run",
    "andrectl/picture.py": "the same",
    "andrectl/verifying/replay.py": "makes a scratch copy beside the run, and removes it",
    "andrectl/doctor/storage.py": "tries the system itself, in a scratch directory of its own",
    "andrectl/example.py": "writes the example's text, which is the user's from then on",
    "andrectl/manual.py": "makes man pages and completions, at installation",
    "andrectl/reference.py": "makes docs/cli.md, in the project's own tree",
}

OF_OS = {
    *("open", "write", "writev", "pwrite", "pwritev", "fsync", "fdatasync", "sendfile", "splice"),
    *("copy_file_range", "truncate", "ftruncate", "posix_fallocate", "rename", "renames"),
    *("replace", "remove", "unlink", "mkdir", "makedirs", "rmdir", "removedirs", "link", "symlink"),
    *("mkfifo", "mknod", "chmod", "fchmod", "chown", "fchown", "lchown", "utime", "setxattr"),
}
OF_PATHS = {
    *("write_text", "write_bytes", "touch", "mkdir", "rmdir", "unlink", "rename", "symlink_to"),
    *("hardlink_to", "chmod"),
}
PASSING = {"disk", "files", "tokenize"}
"""Receivers whose methods of those names are the layer, speak for it, or only read."""


def past_the_layer(source: str) -> list[tuple[int, str]]:
    """Return the calls in `source` that could write past the layer, with their lines."""
    return [
        (node.lineno, ast.unparse(node.func))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and _writes(node)
    ]


def _writes(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id == "open" and _to_write(call.args[1:], call.keywords)
    if not isinstance(call.func, ast.Attribute):
        return False
    name = call.func.attr
    receiver = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
    if receiver == "os":
        return name in OF_OS and not _reads_only(call)
    if receiver in ("shutil", "tempfile"):
        return name not in ("disk_usage", "get_terminal_size")
    if receiver in PASSING:
        return False
    if name == "open":
        return _to_write(call.args[receiver == "io" :], call.keywords)
    if name == "replace":  # of a path; that of a text has two arguments, of a dataclass keywords
        return len(call.args) == 1 and not call.keywords
    return name in OF_PATHS


def _to_write(arguments: list[ast.expr], keywords: list[ast.keyword]) -> bool:
    """Tell whether the mode among `arguments`, the mode first, is one to write."""
    modes = [*arguments[:1], *(word.value for word in keywords if word.arg == "mode")]
    return any(not isinstance(m, ast.Constant) or set(str(m.value)) & set("wax+") for m in modes)


def _reads_only(call: ast.Call) -> bool:
    """Tell whether this is an `os.open` with O_RDONLY and nothing that writes or creates."""
    flags = ast.unparse(call.args[1]) if len(call.args) > 1 else ""
    writing = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND")
    return "O_RDONLY" in flags and not any(word in flags for word in writing)


def test_nothing_writes_past_the_layer() -> None:
    found = {}
    for root in ROOTS:
        for path in sorted(root.rglob("*.py")):
            name = str(path.relative_to(root.parent))
            if calls := past_the_layer(path.read_text(encoding="utf-8")):
                found[name] = calls
    assert {name: calls for name, calls in found.items() if name not in EXCEPTIONS} == {}
    assert set(EXCEPTIONS) - {"andread/rundir/disk.py"} == set(found) - {"andread/rundir/disk.py"}


def test_the_scan_sees_what_it_should() -> None:
    for line in (
        "os.open(path, os.O_RDWR | os.O_CREAT)",
        "os.open(path, flags)",
        "os.fsync(descriptor)",
        "os.replace(one, other)",
        "open(path, 'wb')",
        "open(path, mode)",
        "open(path, mode='a')",
        "path.open('r+b')",
        "io.open(path, 'w')",
        "path.write_text('')",
        "(run.path / name).unlink()",
        "path.replace(other)",
        "shutil.rmtree(path)",
        "tempfile.mkstemp()",
    ):
        assert past_the_layer(line), line
    for line in (
        "os.open(path, os.O_RDONLY | os.O_NONBLOCK)",
        "open(path)",
        "path.open('rb')",
        "tokenize.open(path)",
        "text.replace('a', 'b')",
        "dataclasses.replace(value, step=1)",
        "files.rename(one, other)",
        "disk.unlink(path)",
        "shutil.disk_usage(path)",
    ):
        assert not past_the_layer(line), line


def test_the_layer_is_the_operating_system_itself() -> None:
    assert len(set(disk.CALLS)) == len(disk.CALLS)
    for name in disk.CALLS:
        assert getattr(disk, name) is getattr(os, name)
