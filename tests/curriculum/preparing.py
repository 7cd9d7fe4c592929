"""Run directories to prepare."""

import hashlib
import random
from pathlib import Path

import orjson

from andread.rundir.layout import RunDirectory
from andread.rundir.run_toml import read_settings
from andread.rundir.settings import Settings

HEAD = """
[run]
steps = 10
[model]
width = 8
heads = 2
layers = 1
context = {context}
vocabulary = {vocabulary}
[optimizer]
batch = 2
lr = 0.1
decay_steps = 10
[data]
validation = {validation}
{extra}
"""


def make_run(
    path, sources, *, context=16, vocabulary=400, validation=0.2, extra=""
) -> RunDirectory:
    path.mkdir(exist_ok=True)
    head = HEAD.format(context=context, vocabulary=vocabulary, validation=validation, extra=extra)
    for table in sources:
        head += "[[source]]\n" + "".join(
            f"{key} = {orjson.dumps(value).decode()}\n" for key, value in table.items()
        )
    run = RunDirectory(path)
    run.settings.write_text(head)
    return run


def settings_of(run: RunDirectory) -> Settings:
    return read_settings(run.settings)


def words(seed: int, count: int) -> str:
    draw = random.Random(seed)
    known = [f"w{number}" for number in range(300)]
    return "".join(draw.choice(known) + draw.choice("  \n") for _ in range(count))


def write_texts(folder: Path, count: int, length: int = 200) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number:03d}.txt").write_text(words(number, length))
    return folder


def hashes(run: RunDirectory) -> dict[str, str]:
    files = [entry for entry in run.data.iterdir() if entry.name != ".lock"]
    return {
        entry.name: hashlib.sha256(entry.read_bytes()).hexdigest()
        for entry in [*files, run.tokenizer]
    }
