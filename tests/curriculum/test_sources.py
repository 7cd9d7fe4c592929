import gzip
import io
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from andread.curriculum.inputs import find_inputs, inputs_digest
from andread.curriculum.sources import PIECE, Reader, cut, has_one_document
from andread.rundir.errors import ConfigError, DataError, MissingError
from andread.rundir.settings import SourceSettings


def reader(root, *paths, format="text", **settings) -> Reader:
    source = SourceSettings(name="s", paths=paths, format=format, **settings)
    return Reader(source, find_inputs(source, root))


def texts(reader: Reader) -> list[str]:
    return [piece.text for piece in reader.pieces()]


def test_folders_are_read_recursively_in_sorted_order_without_hidden_files(tmp_path):
    for name in ("b.txt", "a/z.txt", "a/c/y.txt", ".hidden", ".git/x"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name)
    expected = ["a/c/y.txt", "a/z.txt", "b.txt"]
    assert texts(reader(tmp_path, "in")) == expected
    assert texts(reader(tmp_path, "in/**")) == expected
    assert texts(reader(tmp_path, "in/**/*.txt")) == expected
    assert texts(reader(tmp_path, "in/*")) == expected
    assert texts(reader(tmp_path, "in/b.txt", "in", "in")) == ["b.txt", *expected[:2]]
    assert texts(reader(tmp_path / "in", str(tmp_path / "in/b.txt"))) == ["b.txt"]


@pytest.mark.parametrize("pattern", ["nothing.txt", "no/*.txt", "**/*.md", "empty"])
def test_what_matches_nothing_is_named(tmp_path, pattern):
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingError, match=r'source "s".*' + pattern.replace("*", r"\*")):
        reader(tmp_path, pattern)


def test_the_digest_notices_size_time_and_name(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one")
    seen = {inputs_digest(reader(tmp_path, "*.txt").inputs)}
    os.utime(path, ns=(1, 1))
    seen.add(inputs_digest(reader(tmp_path, "*.txt").inputs))
    path.write_text("four")
    os.utime(path, ns=(1, 1))
    seen.add(inputs_digest(reader(tmp_path, "*.txt").inputs))
    path.rename(tmp_path / "b.txt")
    seen.add(inputs_digest(reader(tmp_path, "*.txt").inputs))
    assert len(seen) == 4


@pytest.mark.parametrize(
    "text",
    [
        "short",
        "x" * PIECE,
        "x" * (PIECE + 1),
        "line\n" * 50_000,
        "head\n" + "é" * PIECE,
        "日" * PIECE,
        "a" + "😀" * PIECE,
        ("y" * 99_999 + "\n") * 5,
    ],
)
def test_cutting_loses_nothing_and_parts_no_character(text):
    pieces = [piece.decode() for piece in cut(io.BytesIO(text.encode()))]
    assert "".join(pieces) == text
    assert all(len(piece.encode()) <= PIECE for piece in pieces)
    assert len(pieces) <= 2 + 2 * len(text.encode()) // PIECE


def test_cutting_prefers_a_line_end():
    pieces = list(cut(io.BytesIO(b"0123456789\n" * 10_000)))
    assert all(piece.endswith(b"\n") for piece in pieces)


def test_a_huge_file_without_a_newline_is_never_held_in_memory(tmp_path):
    with (tmp_path / "huge").open("wb") as stream:
        stream.truncate(1 << 30)  # NULs are valid UTF-8
    tracemalloc.start()
    try:
        pieces = (len(piece.text) for piece in reader(tmp_path, "huge").pieces())
        assert sum(size for size, _ in zip(pieces, range(2000), strict=False)) == 2000 * PIECE
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_text_that_is_not_utf8_is_counted_and_named(tmp_path):
    (tmp_path / "a").write_bytes(b"caf\xe9")
    (tmp_path / "b").write_bytes(b"x" * PIECE + b"\xff" * PIECE + b"y" * 10)
    (tmp_path / "c").write_bytes(b"")
    source = reader(tmp_path, "a", "b", "c")
    assert texts(source) == ["x" * PIECE, "y" * 10]
    assert source.skipped["not UTF-8"].names == ("a", "b at byte 65,536")
    assert source.skipped["empty document"].names == ("c",)
    assert source.documents == 1


def test_a_fifo_is_never_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "text").write_text("text")
    source = reader(tmp_path, "fifo", "text")
    assert texts(source) == ["text"]
    assert source.skipped["unreadable file"].names == ("fifo (not a regular file)",)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving up rights needs root")
def test_a_file_without_permission_is_skipped_or_fatal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secret").chmod(0)
    (tmp_path / "open").write_text("open")
    os.seteuid(65534)
    try:
        source = reader(Path(), "secret", "open")
        assert texts(source) == ["open"]
        assert source.skipped["unreadable file"].names == ("secret (Permission denied)",)
        with pytest.raises(DataError, match=r"secret \(Permission denied\)"):
            texts(reader(Path(), "secret"))
    finally:
        os.seteuid(0)


def test_jsonl_plain_and_gzipped(tmp_path):
    lines = b'{"text": "one"}\n\n{"text": 3}\n{"other": "x"}\n{broken\n["list"]\n{"text": "tw\\no"}'
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "c.txt").write_text("not taken from a folder")
    source = reader(tmp_path, ".", format="jsonl")
    assert texts(source) == ["one", "tw\no", "one", "tw\no"]
    assert source.skipped["broken JSON line"].names == ("a.jsonl:5", "b.jsonl.gz:5")
    lacking = source.skipped['JSON line without text under "text"']
    assert (lacking.count, lacking.names[:3]) == (6, ("a.jsonl:3", "a.jsonl:4", "a.jsonl:6"))
    assert texts(reader(tmp_path, "a.jsonl", format="jsonl", text_key="other")) == ["x"]


def test_a_damaged_gzip_keeps_what_was_read(tmp_path):
    whole = gzip.compress(b"".join(b'{"text": "%d"}\n' % number for number in range(100_000)))
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    source = reader(tmp_path, "a.jsonl.gz", format="jsonl")
    assert 1000 < len(texts(source)) < 99_000
    assert source.skipped["damaged gzip file"].count == 1


def test_parquet_streams_and_skips(tmp_path):
    values = [b"one", None, b"caf\xe9", "日本".encode(), b""]
    column = pyarrow.array(values, pyarrow.binary())
    parquet.write_table(pyarrow.table({"body": column}), tmp_path / "a.parquet", row_group_size=2)
    parquet.write_table(pyarrow.table({"body": ["x", "y"]}), tmp_path / "b.parquet")
    (tmp_path / "c.parquet").write_bytes(b"PAR1 not at all PAR1")
    source = reader(tmp_path, ".", format="parquet", text_key="body")
    assert texts(source) == ["one", "日本", "x", "y"]
    assert source.skipped["null"].names == ("a.parquet row 2",)
    assert source.skipped["not UTF-8"].names == ("a.parquet row 3",)
    assert source.skipped["damaged parquet file"].count == 1


def test_parquet_without_such_a_text_column_is_a_config_error(tmp_path):
    parquet.write_table(pyarrow.table({"body": ["x"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match='no column "text"') as caught:
        texts(reader(tmp_path, "a.parquet", format="parquet"))
    assert "body, n" in caught.value.hint
    with pytest.raises(ConfigError, match="does not hold text"):
        texts(reader(tmp_path, "a.parquet", format="parquet", text_key="n"))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"x")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError) as caught:
        texts(reader(tmp_path, "a.parquet", format="parquet"))
    assert "andread[parquet]" in caught.value.hint


def test_an_empty_source_is_an_error(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(DataError, match=r'"s" has nothing to read \(1 × empty document: a\)'):
        texts(reader(tmp_path, "a"))


def test_tokens_are_checked(tmp_path):
    tokens = np.arange(40_000, dtype="<u2") % 1000
    tokens.tofile(tmp_path / "a.bin")
    blocks = list(reader(tmp_path, "a.bin", format="tokens").blocks(1000))
    assert np.array_equal(np.concatenate(blocks), tokens)
    with pytest.raises(DataError, match="token 999 at 999 is not below"):
        list(reader(tmp_path, "a.bin", format="tokens").blocks(999))
    with (tmp_path / "a.bin").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(DataError, match="odd number"):
        list(reader(tmp_path, "a.bin", format="tokens").blocks(1000))


def test_a_lone_document_is_recognised(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    for name, expected in (("a.jsonl", True), ("b.jsonl", False)):
        one = reader(tmp_path, name, format="jsonl")
        assert has_one_document(one.source, one.inputs) is expected
