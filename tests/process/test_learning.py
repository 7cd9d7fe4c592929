"""Learning is real: what is trained on is learnt, what is not is predicted better."""

import math
from collections import Counter
from pathlib import Path

import numpy as np

from andread.curriculum.prepare import prepare
from andread.rundir.layout import RunDirectory
from andread.rundir.run_toml import read_settings
from tests.process.harness import RUN_TOML, entries, find, make_run, train


def test_a_tiny_corpus_is_learnt_by_heart(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for name in ("topics", "license"):
        (run.path / "text" / name).mkdir(parents=True)
    (run.path / "text/topics/a.txt").write_text("The quick brown fox jumps over the lazy dog. " * 9)
    (run.path / "text/license/b.txt").write_text("Pack my box with five dozen liquor jugs! " * 9)
    text = RUN_TOML.format(steps=400, every=400, keep=2)
    text = text.replace("decay_steps = 60", "decay_steps = 400").replace("lr = 3e-3", "lr = 1e-2")
    run.settings.write_text(text.replace("validation = 0.2", "validation = 0.0"))
    prepare(run, read_settings(run.settings))
    train(run)
    assert entries(run)[0]["loss"] > 5
    assert entries(run)[-1]["loss"] < 0.1


def test_text_that_was_never_seen_is_predicted_far_below_its_unigram_entropy(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run", steps=600, every=300)
    text = run.settings.read_text()
    run.settings.write_text(text.replace("decay_steps = 60", "decay_steps = 600"))
    train(run)
    tokens = np.fromfile(run.tokens("topics", "train"), "<u2")
    shares = [count / len(tokens) for count in Counter(tokens.tolist()).values()]
    entropy = -math.fsum(share * math.log(share) for share in shares)
    first, last = find(run, "audit", step=300), find(run, "audit", step=600)
    assert first is not None and last is not None
    assert last["validation"]["topics"] < first["validation"]["topics"] < entropy - 0.7
