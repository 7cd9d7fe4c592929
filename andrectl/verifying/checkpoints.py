"""Every checkpoint: header, size, companion, hash; and which of them a start would take."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from andread.rundir import checkpoint, files, recovery
from andread.rundir.checkpoint import InvalidCheckpoint
from andread.rundir.companion import Companion
from andread.rundir.errors import DataError
from andrectl import checks, loose, render
from andrectl.checks import Looked
from andrectl.verifying.evidence import Evidence

_LOST: Final = (
    "a start passes over it: restore it from a backup, or leave it to the start to set aside"
)


def headers(evidence: Evidence) -> Looked:
    """Read the first eight bytes and the size of every checkpoint."""
    found, good = [], 0
    for step in evidence.steps:
        path = evidence.run.checkpoint(step)
        try:
            with files.opened(path) as descriptor:
                head = checkpoint.read_header(descriptor, path)
        except FileNotFoundError:
            continue  # pruned meanwhile
        except DataError as error:
            found.append(checks.failed(error.message, _LOST))
            continue
        expected = _parameters(evidence)
        if head.step != step:
            found.append(checks.failed(f"{path.name} says it is of step {head.step}", _LOST))
        elif expected and head.n_params != expected:
            found.append(
                checks.failed(
                    f"{path.name} has {head.n_params:,} parameters, the model has {expected:,}",
                    _LOST,
                )
            )
        else:
            good += 1
    if not found and not good:
        return checks.ok("there is no checkpoint yet")
    return found or checks.ok(f"{render.count(good, 'checkpoint')}: sizes and headers are right")


def _parameters(evidence: Evidence) -> int:
    """Return what run.toml says, else the newest companion; 0 where neither does."""
    if evidence.settings is not None and not evidence.settings.model.factory:
        return evidence.settings.model.n_params
    return evidence.newest.n_params if evidence.newest else 0


def companions(evidence: Evidence) -> Looked:
    """Tell of every checkpoint without a companion that is whole and its own."""
    expected = _parameters(evidence)
    wrong = dict(evidence.unfit)
    for step, found in evidence.companions.items():
        if expected and found.n_params != expected:
            wrong[step] = f"{evidence.run.companion(step).name} is of {found.n_params:,} parameters"
    if wrong:
        return [checks.failed(wrong[step], _LOST) for step in sorted(wrong)]
    whole = render.count(len(evidence.companions), "companion")
    return checks.ok(f"{whole}: whole by their own checksums, each of its checkpoint's step")


def hashes(evidence: Evidence) -> Looked:
    """Read every checkpoint whole and compare its SHA-256 with what its companion says."""
    fit = sorted(evidence.companions)
    total = sum(loose.file_size(evidence.run.checkpoint(step)) for step in fit)
    if not evidence.deep:
        return checks.skipped(f"not asked for: --deep reads all {render.size(total)}")
    found, good = [], 0
    for step in fit:
        path, vouched = evidence.run.checkpoint(step), evidence.companions[step]
        try:
            digest = recovery.verified_reader(path, vouched)
        except FileNotFoundError:
            continue  # pruned meanwhile
        except DataError as error:
            found.append(checks.failed(error.message, _LOST))
            continue
        evidence.digests[step] = digest
        if digest == vouched.sha256:
            good += 1
            continue
        found.append(
            checks.failed(
                f"{path.name} has SHA-256 {digest[:12]}…, its companion says "
                f"{vouched.sha256[:12]}…{_region(evidence, path, step)}",
                _LOST,
            )
        )
    return found or checks.ok(
        f"{render.count(good, 'checkpoint')}, {render.size(total)}: every byte is as it was written"
    )


def _region(evidence: Evidence, path: Path, step: int) -> str:
    """Name the region that differs, where a pivot has recorded the hash of each."""
    for manifest in evidence.manifests.values():
        kept = loose.table(manifest.get("checkpoint"))
        if manifest.get("step") == step and kept.get("file") == evidence.companions[step].sha256:
            now = checkpoint.hashes(path)
            names = [name for name in checkpoint.REGIONS if now[name] != kept.get(name)]
            return f" (region {', '.join(names) or 'header'})"
    return ""


def resume(evidence: Evidence) -> Looked:
    """Tell which checkpoint a start would take, as the daemon's own search finds it."""

    def reader(path: Path, found: Companion) -> str:
        if found.step in evidence.digests:
            return evidence.digests[found.step]
        with files.opened(path) as descriptor:
            head = checkpoint.read_header(descriptor, path)
        if (head.step, head.n_params) != (found.step, found.n_params):
            raise InvalidCheckpoint(f"{path.name} is not what its companion says")
        return found.sha256

    parameters = _parameters(evidence)
    if not parameters:
        return checks.skipped("neither run.toml nor a companion tells the model's size")
    recovered = recovery.newest_valid(evidence.run, parameters, reader)
    if recovered is None:
        return checks.ok("the run has not begun: a start begins it")
    step = recovered.companion.step
    again = max(0, evidence.last_step - step)
    told = f"a start takes {evidence.run.checkpoint(step).name} and computes {again:,} steps again"
    if recovered.rejected:
        passed = "; ".join(item.reason for item in recovered.rejected)
        return checks.warning(f"{told}, passing over: {passed}", "see the checks above")
    return checks.ok(told)
