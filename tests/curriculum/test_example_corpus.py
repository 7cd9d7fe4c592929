import ast

import orjson
import pytest

from andrectl import example

MODULE = '''"""The module."""
import os  # é
\x0c

class Shape:
    """A shape.

    With two lines.
    """

    sides = 3

    def area(self): "One line."; return 1

    def nothing(self):
        """Only this."""


text = """not a docstring"""
'''


def test_parting_takes_docstrings_and_nothing_else():
    code, docstrings = example.parted(MODULE)
    expected = ["The module.", "A shape.\n\nWith two lines.", "One line.", "Only this."]
    assert docstrings == expected
    for docstring in expected:
        assert docstring not in code
    assert 'text = """not a docstring"""' in code
    assert "import os  # é" in code
    ast.parse(code)


def test_quotes_are_found_anywhere():
    one, two = "A docstring of some length.", "Another docstring of some length."
    assert example.quoted([one, two], ["x = 1", f"# {two}\n"]) == {two}


@pytest.mark.slow
def test_the_corpus_is_large_whole_and_the_same_twice(tmp_path):
    tables = example.write_example(tmp_path / "a")
    assert example.write_example(tmp_path / "b") == tables
    assert [table["name"] for table in tables] == ["code", "docstrings", "prose"]
    trees = []
    for side in ("a", "b"):
        root = tmp_path / side
        trees.append({p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()})
    assert trees[0] == trees[1]
    sizes = {"code": 2_000_000, "prose": 150_000, "docstrings.jsonl": 500_000}
    for name, least in sizes.items():
        inside = (len(data) for path, data in trees[0].items() if name in path.parts)
        assert sum(inside) > least, name
    code = "\n".join(
        data.decode() for path, data in trees[0].items() if path.parts[:2] == ("corpus", "code")
    )
    lines = (tmp_path / "a/corpus/docstrings.jsonl").read_bytes().splitlines()
    for path, data in trees[0].items():
        if path.suffix == ".py":
            ast.parse(data.replace(b"\r", b""))
    for line in lines[::7]:
        assert orjson.loads(line)["text"] not in code
