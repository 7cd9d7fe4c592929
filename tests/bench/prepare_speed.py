"""How fast text becomes tokens, against the tokenizers library's own batches on all cores.

python -m tests.bench.prepare_speed [DIRECTORY]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import tokenizers

from andread.curriculum.prepare import prepare
from andread.rundir.layout import RunDirectory
from andread.rundir.run_toml import read_settings
from andrectl.example import write_example
from andrectl.template import RECIPES, run_toml
from tests.bench.table import Case, Row, in_turns, ratio, show


def measure(place: Path) -> list[Row]:
    run = RunDirectory(place / "run")
    run.path.mkdir()
    sources = write_example(run.path)
    text = run_toml("andrea-12m", RECIPES["andrea-12m"], 10, sources)
    run.settings.write_text(text, encoding="utf-8")
    settings = read_settings(run.settings)
    prepare(run, settings)
    given = place / "tokenizer.json"
    shutil.copy(run.tokenizer, given)
    assert 'path = ""' in text
    run.settings.write_text(text.replace('path = ""', f'path = "{given}"'), encoding="utf-8")
    settings = read_settings(run.settings)
    library = tokenizers.Tokenizer.from_file(str(run.tokenizer))
    paths = [p for table in sources for root in table["paths"] for p in _files(run.path / root)]
    texts = [path.read_text(encoding="utf-8") for path in paths]

    def ours() -> None:
        shutil.rmtree(run.data)
        prepare(run, settings)

    def theirs() -> None:
        for start in range(0, len(texts), 256):
            library.encode_batch_fast(texts[start : start + 256], add_special_tokens=False)

    cases: dict[str, Case] = {"theirs": theirs, "ours": ours}
    in_turns(cases, 1)
    seconds = in_turns(cases, 7)
    size = sum(len(text.encode()) for text in texts) / 1e6
    return [
        Row(
            f"preparing {size:.1f} MB with a tokenizer at hand: speed against encode_batch_fast",
            f"{ratio(seconds['theirs'], seconds['ours'])} ×",
            "≥ 0.9 ×",
        )
    ]


def _files(root: Path) -> list[Path]:
    return [path for path in sorted(root.rglob("*")) if path.is_file()] or [root]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        show("Preparing", measure(Path(name)))
