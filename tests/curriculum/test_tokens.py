import os

import numpy as np
import pytest
from preparing import make_run, settings_of, write_texts

from andread.curriculum.prepare import prepare
from andread.curriculum.tokens import open_source
from andread.rundir.errors import DataError, MissingError


@pytest.fixture
def run(tmp_path):
    run = make_run(tmp_path, [{"name": "books", "paths": ["books"]}])
    write_texts(tmp_path / "books", 20)
    prepare(run, settings_of(run))
    return run


def test_windows_cover_every_token_and_share_one(run):
    source = open_source(run, "books", 16)
    tokens = np.fromfile(run.tokens("books", "train"), "<u2")
    assert len(source.train) == (len(tokens) - 1) // 16
    for index in range(len(source.train)):
        window = source.train.window(index)
        assert window.dtype == np.int64
        assert np.array_equal(window, tokens[16 * index : 16 * index + 17])
    for index in (-1, len(source.train)):
        with pytest.raises(IndexError):
            source.train.window(index)
    source.verify()
    source.close()


def test_tokens_that_were_not_prepared_name_the_command(run):
    with pytest.raises(MissingError) as caught:
        open_source(run, "other", 16)
    assert "andrectl prepare" in caught.value.hint


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_file_that_is_gone_or_of_another_size_is_told(run, split):
    path = run.tokens("books", split)
    os.truncate(path, path.stat().st_size - 2)
    with pytest.raises(DataError, match="its manifest says"):
        open_source(run, "books", 16)
    path.unlink()
    with pytest.raises(MissingError, match=split):
        open_source(run, "books", 16)


def test_a_file_that_shrinks_while_it_is_in_use_is_an_error_not_a_signal(run):
    source = open_source(run, "books", 16)
    os.truncate(run.tokens("books", "train"), 40)
    assert len(source.train.window(0)) == 17
    with pytest.raises(DataError, match="became shorter"):
        source.train.window(5)
    source.close()


def test_a_token_outside_the_vocabulary_is_an_error(run):
    source = open_source(run, "books", 16)
    with run.tokens("books", "train").open("r+b") as stream:
        stream.write(b"\xff\xff")
    with pytest.raises(DataError, match="token 65535"):
        source.train.window(0)
    with pytest.raises(DataError, match="not what its manifest says"):
        source.verify()
    source.close()


def test_a_manifest_of_another_source_is_refused(run):
    run.manifest("other").write_bytes(run.manifest("books").read_bytes())
    with pytest.raises(DataError, match='the manifest of source "books"'):
        open_source(run, "other", 16)


def test_a_context_longer_than_the_source_is_refused(run):
    with pytest.raises(DataError, match="one window needs 100,001"):
        open_source(run, "books", 100_000)


def test_a_file_that_is_gone_or_cut_while_open_is_named_and_heals(run):
    source = open_source(run, "books", 16)
    path, aside = run.tokens("books", "train"), run.path / "aside"
    assert source.lost() == []
    path.rename(aside)
    assert source.lost() == ["books.train.bin"]
    assert len(source.train.window(0)) == 17  # it reads on from what it holds open
    aside.rename(path)
    assert source.lost() == []
    os.truncate(run.tokens("books", "validation"), 2)
    assert source.lost() == ["books.validation.bin"]
    source.close()
