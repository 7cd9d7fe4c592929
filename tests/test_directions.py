"""Who may import whom: daemon -> trainer -> {engine, curriculum, audit} -> rundir <- andrectl."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    path.relative_to(ROOT)
    for room in ("andread", "andrectl")
    for path in (ROOT / room).rglob("*.py")
)


def imports(path: Path, everywhere: bool) -> Iterator[str]:
    """Yield the modules that `path` imports: everywhere, or only when it is itself imported."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    for node in _nodes(tree, everywhere):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _nodes(tree: ast.AST, everywhere: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if not everywhere and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if not everywhere and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from _nodes(node, everywhere)


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_directions(path: Path) -> None:
    name = ".".join(path.with_suffix("").parts)
    for module in imports(path, everywhere=True):
        if within(name, "andread.rundir"):
            assert not within(module, "torch", "numpy", "click", "systemd", "rich"), module
            assert within(module, "andread.rundir") or not within(module, "andread"), module
        if within(name, "andread"):
            assert not within(module, "andrectl"), module
        if within(name, "andread") and not within(name, "andread.daemon", "andread.__main__"):
            assert not within(module, "andread.daemon", "systemd"), module
        if within(name, "andread.engine", "andread.curriculum", "andread.audit"):
            assert not within(module, "andread.trainer"), module
    if within(name, "andrectl"):
        for module in imports(path, everywhere=False):
            allowed = within(module, "andread.rundir") or module == "andread.__version__"
            assert allowed or not within(module, "andread"), module
            assert not within(module, "torch", "numpy", "rich"), module


def test_the_walk_sees_what_it_should(tmp_path: Path) -> None:
    source = "import a.b\nif x:\n    from c import d\ndef f():\n    import e\n"
    path = tmp_path / "module.py"
    path.write_text(source)
    assert list(imports(path, everywhere=True)) == ["a.b", "c.d", "e"]
    assert list(imports(path, everywhere=False)) == ["a.b", "c.d"]
