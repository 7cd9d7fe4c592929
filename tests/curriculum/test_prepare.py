import dataclasses
import resource
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from preparing import hashes, make_run, settings_of, words, write_texts

from andread.curriculum import partial
from andread.curriculum.chunks import Chunks
from andread.curriculum.prepare import StoppedError, prepare
from andread.curriculum.sources import Reader
from andread.curriculum.tokenizer import Tokenizer
from andread.rundir.errors import BusyError, ConfigError, DataError, MissingError, StorageError
from andread.rundir.manifest import fingerprint_of, write_manifest
from andread.rundir.settings import SourceSettings

SEPARATOR = "<|endoftext|>"
BOOKS = {"name": "books", "paths": ["books"]}


def trained(run):
    run.history.write_text('[\n{"step":1,"loss":2.0}\n]\n')


def tokens(run, name, split):
    return np.fromfile(run.tokens(name, split), "<u2")


def test_every_document_is_there_once_followed_by_the_separator(tmp_path):
    run = make_run(tmp_path, [BOOKS])
    write_texts(tmp_path / "books", 60)
    (manifest,) = prepare(run, settings_of(run))
    tokenizer = Tokenizer.load(run.tokenizer, SEPARATOR)
    sides = {
        split: tokenizer.decode(tokens(run, "books", split)).split(SEPARATOR)
        for split in ("train", "validation")
    }
    assert all(documents.pop() == "" for documents in sides.values())
    expected = {words(number, 200) for number in range(60)}
    assert set(sides["train"]) | set(sides["validation"]) == expected
    assert len(sides["train"]) + len(sides["validation"]) == 60 == manifest.documents
    assert 11 <= len(sides["validation"]) <= 13  # one of every five
    assert manifest.train_tokens == len(tokens(run, "books", "train"))
    assert not list(run.data.glob("*.partial"))


def test_a_long_document_goes_to_one_side_whole_and_a_lone_one_by_pieces(tmp_path):
    run = make_run(tmp_path, [BOOKS, {"name": "lone", "paths": ["lone.txt"]}])
    write_texts(tmp_path / "books", 12, 40_000)  # several pieces each
    (tmp_path / "lone.txt").write_text(words(99, 200_000))
    _, lone = prepare(run, settings_of(run))
    tokenizer = Tokenizer.load(run.tokenizer, SEPARATOR)
    texts = [tokenizer.decode(tokens(run, "books", split)) for split in ("train", "validation")]
    documents = [text for side in texts for text in side.split(SEPARATOR) if text]
    assert sorted(documents) == sorted(words(number, 40_000) for number in range(12))
    assert lone.validation_tokens > 0
    assert lone.documents == 1


def test_the_split_does_not_depend_on_the_seed_of_the_run(tmp_path):
    write_texts(tmp_path / "books", 20)
    found = []
    for seed in (1, 2):
        run = make_run(tmp_path / f"r{seed}", [BOOKS | {"paths": ["../books"]}])
        run.settings.write_text(run.settings.read_text().replace("[run]", f"[run]\nseed = {seed}"))
        found.append(prepare(run, settings_of(run))[0].fingerprint)
    assert found[0] == found[1]


def test_tokens_are_split_in_blocks(tmp_path):
    write_texts(tmp_path / "books", 5)
    Tokens = np.random.default_rng(1).integers(0, 400, 500_000).astype("<u2")  # noqa: N806
    Tokens.tofile(tmp_path / "t.bin")
    made = Tokenizer.train([words(1, 500)], 400, SEPARATOR)
    (tmp_path / "own.json").write_bytes(made.dump())
    run = make_run(
        tmp_path,
        [{"name": "t", "paths": ["t.bin"], "format": "tokens"}],
        extra='[tokenizer]\npath = "own.json"',
    )
    (manifest,) = prepare(run, settings_of(run))
    assert manifest.train_tokens + manifest.validation_tokens == 500_000
    assert manifest.validation_tokens % (1 << 14) in (0, 500_000 % (1 << 14))
    assert manifest.validation_tokens > 0
    assert run.tokenizer.read_bytes() == made.dump()


def test_a_large_vocabulary_takes_four_bytes_a_token(tmp_path):
    write_texts(tmp_path / "books", 5)
    run = make_run(tmp_path, [BOOKS], vocabulary=70_000)
    (manifest,) = prepare(run, settings_of(run))
    assert manifest.dtype == "uint32"
    assert run.tokens("books", "train").stat().st_size == 4 * manifest.train_tokens


def test_what_is_done_is_not_done_again_until_its_inputs_change(tmp_path):
    run = make_run(tmp_path, [BOOKS])
    write_texts(tmp_path / "books", 5)
    (first,) = prepare(run, settings_of(run))
    before = run.tokens("books", "train").stat().st_mtime_ns
    assert prepare(run, settings_of(run)) == [first]
    assert run.tokens("books", "train").stat().st_mtime_ns == before
    (tmp_path / "books/000.txt").write_text(words(50, 300))
    (second,) = prepare(run, settings_of(run))
    assert second.fingerprint != first.fingerprint
    assert second.tokenizer == first.tokenizer


def test_a_run_that_has_trained_keeps_its_tokens(tmp_path):
    run = make_run(tmp_path, [BOOKS])
    write_texts(tmp_path / "books", 5)
    first = prepare(run, settings_of(run))
    trained(run)
    (tmp_path / "books/000.txt").write_text("changed")
    notes = []
    assert prepare(run, settings_of(run), notes.append) == first
    assert [note.text for note in notes if "are kept" in note.text]
    run.tokens("books", "train").unlink()
    with pytest.raises(ConfigError, match="missing or damaged"):
        prepare(run, settings_of(run))


def test_lost_tokens_are_made_anew_from_the_same_inputs(tmp_path):
    run = make_run(tmp_path, [BOOKS])
    write_texts(tmp_path / "books", 5)
    prepare(run, settings_of(run))
    before = hashes(run)
    trained(run)
    run.tokens("books", "train").write_bytes(b"torn")
    prepare(run, settings_of(run))
    assert hashes(run) == before


def test_a_source_added_later_leaves_the_tokenizer_alone(tmp_path):
    run = make_run(tmp_path, [BOOKS])
    write_texts(tmp_path / "books", 5)
    write_texts(tmp_path / "more", 9)
    (books,) = prepare(run, settings_of(run))
    trained(run)
    make_run(tmp_path, [BOOKS, {"name": "more", "paths": ["more"]}])
    found = prepare(run, settings_of(run))
    assert found[0] == books
    assert found[1].tokenizer == books.tokenizer


def test_a_source_that_repeats_itself_is_told_and_counted_by_its_unique_tokens(tmp_path):
    write_texts(tmp_path / "books", 20)
    (tmp_path / "psalm.txt").write_text(words(99, 150) * 80)
    run = make_run(tmp_path, [BOOKS, {"name": "psalm", "paths": ["psalm.txt"]}])
    told = []
    books, psalm = prepare(run, settings_of(run), told.append)
    assert books.unique_tokens == books.train_tokens
    assert psalm.unique_share < 0.05
    (note,) = (each for each in told if "unique" in each.text)
    assert note.source == "psalm"
    assert f"{psalm.unique_tokens:,} of its {psalm.train_tokens:,}" in note.text


def test_a_run_that_was_begun_before_tokens_were_counted_goes_on_without(tmp_path):
    run = make_run(tmp_path, [BOOKS])
    write_texts(tmp_path / "books", 20)
    (made,) = prepare(run, settings_of(run))
    before = dataclasses.replace(
        made,
        unique_tokens=0,
        fingerprint=fingerprint_of(made.dtype, made.train_sha256, made.validation_sha256),
    )
    write_manifest(run.manifest("books"), before)
    trained(run)
    run.tokens("books", "train").unlink()
    assert prepare(run, settings_of(run)) == [before]


def test_a_trained_run_without_its_tokenizer_is_refused(tmp_path):
    run = make_run(tmp_path, [BOOKS])
    write_texts(tmp_path / "books", 5)
    prepare(run, settings_of(run))
    trained(run)
    run.tokenizer.unlink()
    with pytest.raises(MissingError, match="is gone"):
        prepare(run, settings_of(run))


def test_inputs_that_are_gone_matter_no_more(tmp_path):
    run = make_run(tmp_path, [BOOKS])
    write_texts(tmp_path / "books", 5)
    first = prepare(run, settings_of(run))
    shutil.rmtree(tmp_path / "books")
    assert prepare(run, settings_of(run)) == first


@pytest.mark.parametrize(
    ("extra", "vocabulary", "error"),
    [
        ('[tokenizer]\npath = "own.json"\nseparator = "<eos>"', 400, "no token"),
        ('[tokenizer]\npath = "own.json"', 300, "vocabulary is 300"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_a_config_error(tmp_path, extra, vocabulary, error):
    write_texts(tmp_path / "books", 5)
    (tmp_path / "own.json").write_bytes(Tokenizer.train([words(1, 999)], 400, SEPARATOR).dump())
    run = make_run(tmp_path, [BOOKS], extra=extra, vocabulary=vocabulary)
    with pytest.raises(ConfigError, match=error):
        prepare(run, settings_of(run))
    assert not run.tokenizer.exists()


def test_a_source_shorter_than_a_window_is_refused(tmp_path):
    run = make_run(tmp_path, [BOOKS], context=1000)
    write_texts(tmp_path / "books", 1, 20)
    with pytest.raises(DataError, match=r'"books" has \d+ training tokens; one window needs 1,001'):
        prepare(run, settings_of(run))
    assert not [entry for entry in run.data.iterdir() if entry.name != ".lock"]


def test_stopping_is_heeded_at_any_moment_and_changes_nothing(tmp_path):
    write_texts(tmp_path / "books", 40, 5000)
    whole = make_run(tmp_path / "whole", [BOOKS | {"paths": ["../books"]}])
    prepare(whole, settings_of(whole))
    run = make_run(tmp_path / "stopped", [BOOKS | {"paths": ["../books"]}])
    stops = 0
    for patience in range(1, 60):
        asked = iter(range(patience))
        try:
            prepare(run, settings_of(run), stopping=lambda it=asked: next(it, None) is None)
            break
        except StoppedError:
            stops += 1
    assert stops > 5
    assert hashes(run) == hashes(whole)


KILLED = """
import sys
from pathlib import Path
from andread.curriculum import chunks, prepare
from andread.rundir.layout import RunDirectory
from andread.rundir.run_toml import read_settings
chunks.BATCH, prepare.JOURNAL_EVERY = 20_000, 10_000
run = RunDirectory(Path(sys.argv[1]))
def tell(progress):
    if progress.phase == "tokens":
        print(progress.done, flush=True)
prepare.prepare(run, read_settings(run.settings), tell)
"""


def test_a_kill_at_any_moment_changes_nothing(tmp_path):
    write_texts(tmp_path / "books", 30, 4000)
    whole = make_run(tmp_path / "whole", [BOOKS | {"paths": ["../books"]}])
    prepare(whole, settings_of(whole))
    run = make_run(tmp_path / "killed", [BOOKS | {"paths": ["../books"]}])
    taken_up = []
    for lines in (1, 2, 3, 3, 3, 3, 3):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(run.path)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        for _, _line in zip(range(lines), process.stdout, strict=False):
            pass
        process.send_signal(signal.SIGKILL)
        process.stdout.close()
        process.wait()
        if run.partial("books", "journal").exists():
            taken_up.append(run.partial("books", "train").stat().st_size)
    assert taken_up == sorted(taken_up)
    assert len(set(taken_up)) > 2  # progress was kept from kill to kill
    prepare(run, settings_of(run))
    assert hashes(run) == hashes(whole)


def test_what_the_journal_vouches_for_is_not_encoded_again(tmp_path, monkeypatch):
    write_texts(tmp_path / "books", 30, 4000)
    run = make_run(tmp_path, [BOOKS])
    with pytest.raises(subprocess.CalledProcessError):
        script = KILLED.replace("print(progress.done, flush=True)", "n = 1 / (progress.done < 5e5)")
        subprocess.run(
            [sys.executable, "-c", script, str(run.path)], check=True, stderr=subprocess.DEVNULL
        )
    vouched = run.partial("books", "train").stat().st_size
    assert vouched > 100_000
    encoded = []
    original = Tokenizer.encode
    monkeypatch.setattr(
        Tokenizer, "encode", lambda self, texts: encoded.extend(texts) or original(self, texts)
    )
    prepare(run, settings_of(run))
    whole = sum(path.stat().st_size for path in (tmp_path / "books").iterdir())
    assert sum(map(len, encoded)) < 0.8 * whole


@pytest.mark.parametrize("damage", [b"", b"\0" * 1000])
def test_partial_tokens_that_do_not_match_their_journal_are_begun_anew(tmp_path, damage):
    run = make_run(tmp_path, [BOOKS])
    run.data.mkdir()
    first = partial.Partial(run, "books", "recipe", "uint16")
    first.append("train", b"x" * 1000)
    first.save(7)
    first.close()
    again = partial.Partial(run, "books", "recipe", "uint16")
    assert (again.units, again.size("train")) == (7, 1000)
    again.close()
    run.partial("books", "train").write_bytes(damage)
    anew = partial.Partial(run, "books", "recipe", "uint16")
    assert (anew.units, anew.size("train")) == (0, 0)
    anew.close()
    other = partial.Partial(run, "books", "another recipe", "uint16")
    assert other.units == 0
    other.close()


def test_two_preparations_do_not_meet(tmp_path):
    run = make_run(tmp_path, [BOOKS])
    write_texts(tmp_path / "books", 5)

    def meddle(_):
        with pytest.raises(BusyError):
            prepare(run, settings_of(run))

    prepare(run, settings_of(run), meddle)


def test_a_full_disk_is_a_storage_error_and_leaves_nothing_half(tmp_path):
    run = make_run(tmp_path, [BOOKS])
    write_texts(tmp_path / "books", 100, 2000)
    prepare(run, settings_of(run))
    whole = hashes(run)
    for name in whole:
        if name != "tokenizer.json":
            (run.data / name).unlink()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(StorageError):
            prepare(run, settings_of(run))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert not list(run.data.glob("*.bin")) + list(run.data.glob("*.json"))
    prepare(run, settings_of(run))
    assert hashes(run) == whole


@pytest.mark.slow
def test_memory_stays_bounded(tmp_path):
    (tmp_path / "big.txt").write_text(words(1, 400_000).replace("\n", " ") * 8)  # one line, 15 MB
    run = make_run(tmp_path, [{"name": "big", "paths": ["big.txt"]}])
    script = KILLED.replace("chunks.BATCH, prepare.JOURNAL_EVERY = 20_000, 10_000", "")
    # Not ru_maxrss: a child starts with that of its parent.
    script += "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    done = subprocess.run(
        [sys.executable, "-c", script, str(run.path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout.split()[-1]) < 300 << 10


@pytest.mark.parametrize("share", [0.0, 0.02, 0.05, 1 / 3, 0.5, 0.9])
def test_the_split_takes_one_of_every_so_many_documents(share):
    for name in ("books", "code", "prose"):
        reader = Reader(SourceSettings(name=name, paths=("x",)), [])
        chunks = Chunks(reader, share, 320, lambda: None)
        drawn = [number for number in range(1000) if chunks._split(number) == "validation"]
        assert abs(len(drawn) - 1000 * share) <= 1
        assert 0 not in drawn
        for end in range(40, 1000, 97):
            assert abs(sum(number < end for number in drawn) - end * share) < 2
