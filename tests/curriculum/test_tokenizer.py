import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from preparing import words

from andread.curriculum import sample
from andread.curriculum.inputs import find_inputs
from andread.curriculum.sources import PIECE, Reader
from andread.curriculum.tokenizer import Tokenizer
from andread.rundir.errors import ConfigError, DataError, MissingError
from andread.rundir.settings import SourceSettings

SEPARATOR = "<|endoftext|>"
TEXTS = [words(seed, 500) for seed in range(20)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, 400, SEPARATOR)


@pytest.mark.parametrize(
    "text",
    [
        TEXTS[0],
        "",
        "  tabs\t\r\n\n  é日本😀 x'll don't 12345678901234567890123456789012345",
        f"a {SEPARATOR} in a text is text",
        "\0\x01\x7f\ufeff\u2028",
        "=" * 1000,
    ],
)
def test_decoding_gives_the_text_back(tokenizer, text):
    (ids,) = tokenizer.encode([text])
    assert tokenizer.decode(ids) == text
    assert tokenizer.separator not in ids


def test_separators_and_cut_characters_show(tokenizer):
    (ids,) = tokenizer.encode(["é"])
    assert tokenizer.decode([tokenizer.separator, *ids, *ids[:1]]) == f"{SEPARATOR}é\ufffd"
    assert tokenizer.decode([tokenizer.size + 5]) == ""


def test_a_small_text_gives_fewer_tokens_than_the_vocabulary():
    small = Tokenizer.train(["ab ab ab"], 5000, SEPARATOR)
    assert 257 <= small.size < 270


def test_a_vocabulary_without_room_for_every_byte_is_refused():
    with pytest.raises(ConfigError, match="below 257"):
        Tokenizer.train(TEXTS, 256, SEPARATOR)


def test_a_word_of_a_whole_piece_is_no_burden(tokenizer):
    word = "".join(random.Random(1).choices("abcdefgh", k=PIECE))
    (ids,) = tokenizer.encode([word])
    assert tokenizer.decode(ids) == word
    trained = Tokenizer.train([word] * 3, 2000, SEPARATOR)
    longest = max(len(trained.decode([number])) for number in range(trained.size))
    assert longest <= 32


def test_training_gives_the_same_bytes_in_every_process(tokenizer):
    script = (
        "import sys, hashlib; sys.path.insert(0, sys.argv[1]); from test_tokenizer import *\n"
        "print(hashlib.sha256(Tokenizer.train(TEXTS, 400, SEPARATOR).dump()).hexdigest())"
    )
    found = {hashlib.sha256(tokenizer.dump()).hexdigest()}
    for seed, threads in (("0", "1"), ("1", "2"), ("2", "4")):
        environment = os.environ | {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", script, str(Path(__file__).parent)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout.strip())
    assert len(found) == 1


def test_what_is_dumped_is_loaded(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer.dump())
    loaded = Tokenizer.load(path, SEPARATOR)
    assert (loaded.size, loaded.separator) == (tokenizer.size, tokenizer.separator)
    assert list(loaded.encode(TEXTS[:2])) == list(tokenizer.encode(TEXTS[:2]))
    with pytest.raises(ConfigError, match='no token "<eos>"'):
        Tokenizer.load(path, "<eos>")
    path.write_bytes(b"{}")
    with pytest.raises(DataError):
        Tokenizer.load(path, SEPARATOR)
    with pytest.raises(MissingError):
        Tokenizer.load(tmp_path / "none", SEPARATOR)


def test_encoding_then_forking_prints_no_warning(tokenizer, tmp_path):
    (tmp_path / "t.json").write_bytes(tokenizer.dump())
    script = (
        "import os, sys; from pathlib import Path\n"
        "from andread.curriculum.tokenizer import Tokenizer\n"
        "t = Tokenizer.load(Path(sys.argv[1]), '<|endoftext|>'); list(t.encode(['a b'] * 100))\n"
        "import subprocess; subprocess.run(['true'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "t.json")], capture_output=True, check=True
    )
    assert done.stderr == b""


def test_shares_are_even_and_what_small_sources_leave_goes_to_others():
    assert sample.shares([1000, 1000], 100) == [50, 50]
    assert sample.shares([10, 1000, 1000], 100) == [10, 45, 45]
    assert sample.shares([5, 5], 100) == [5, 5]


def test_a_sample_is_even_within_a_source_and_bounded(tmp_path):
    for number in range(1000):
        (tmp_path / f"{number:04d}").write_text(f"{number:04d}" * 100)
    source = SourceSettings(name="s", paths=("*",))
    reader = Reader(source, find_inputs(source, tmp_path))
    kept = sample.every_kth(reader, 100_000, lambda _: None)
    numbers = [int(text[:4]) for text in kept]
    assert numbers == list(range(0, 1000, 8))
    assert sum(map(len, kept)) <= 100_000


def test_distinct_words_bound_a_sample():
    draw = random.Random(1)
    texts = [f"{draw.randbytes(500).hex()} " for _ in range(1000)]
    assert 90 < len(list(sample.bounded(texts, 100_000))) < 130
    same = ["the same words"] * 1000
    assert len(list(sample.bounded(same, 100_000))) == 1000
