"""What the run is and how it mixes: settings, policies, archives, zombies, tokens."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from andread.rundir import drift, feasibility, files, pivot, policy
from andread.rundir.errors import AndreadError, DataError, MissingError
from andread.rundir.manifest import read_manifest
from andread.rundir.overrides import settings_under
from andread.rundir.policy import Policy, policy_at
from andread.rundir.run_toml import read_settings
from andrectl import checks, loose, render
from andrectl.checks import Looked, Outcome
from andrectl.verifying.evidence import Evidence, Table

_EDITED: Final = "restore it from a backup: policies and archives are never edited"
_UNREADABLE: Final = "run.toml cannot be read"


def settings(evidence: Evidence) -> Outcome:
    """Tell whether run.toml is what the run was trained with, and can be obeyed as it stands."""
    made = read_settings(evidence.run.settings)
    for each in evidence.policies or []:
        settings_under(made, each)
    if evidence.policies:
        now = policy_at(evidence.policies, evidence.last_step + 1)
        feasibility.obeyed(now, made.source_names(), evidence.last_step)
    if evidence.newest is None:
        return checks.ok("run.toml is right; nothing is trained yet")
    drift.refuse_drift(made, {}, evidence.newest)
    return checks.ok(f"run.toml is what step {evidence.newest.step:,} was trained with")


def policies(evidence: Evidence) -> Looked:
    """Tell whether every companion names the policy that was in force at its step."""
    try:
        listed = policy.read_policies(evidence.run.policy)
    except MissingError:
        if not evidence.begun:
            return checks.ok(
                f"there is none yet: the first start makes one, {policy.FIRST.algorithm}"
            )
        raise
    found = []
    for step, companion in sorted(evidence.companions.items()):
        name, mixer = companion.policy, loose.table(companion.curriculum.get("mixer"))
        lawful = {policy_at(listed, at).id for at in (step, step + 1) if at > 0}
        if step == 0 and "fork" in companion.reasons:
            continue  # of the parent's first policy, under which no step has run
        if name and name not in {each.id for each in listed}:
            what = f"the companion of step {step} names policy {name}, which is not in policy.json"
            found.append(checks.failed(what, _EDITED))
        elif name and name not in lawful:
            what = f"the companion of step {step} names policy {name}, not in force at that step"
            found.append(checks.failed(what, _EDITED))
        elif name and mixer.get("policy", name) != name:
            what = f"the companion of step {step} has a mixer of another policy"
            found.append(checks.failed(what, _EDITED))
    if evidence.begun and listed[-1].begins_after > evidence.last_step:
        what = f"policy {listed[-1].id} begins after step {listed[-1].begins_after}"
        found.append(checks.failed(f"{what}, the run has only {evidence.last_step} steps", _EDITED))
    return found or checks.ok(
        f"{len(listed)} in policy.json, ids match contents and what the companions name"
    )


def archives(evidence: Evidence) -> Looked:
    """Tell whether every archive is what its manifest says, and the policies go on from it."""
    names, journal = evidence.archives, _journal(evidence)
    found: list[Outcome] = []
    for name in names:
        manifest = evidence.manifests.get(name)
        if manifest is None:
            if name != journal:  # else it is being made
                pivot_manifest = evidence.run.archive / name / pivot.MANIFEST
                what = f"archive/{name}: {pivot_manifest.name} is missing or damaged"
                found.append(checks.failed(what, _EDITED))
            continue
        problems = [*_files(evidence.run.archive / name, manifest)]
        if name != journal:
            problems += _lineage(evidence, evidence.run.archive / name, manifest)
        found += [checks.failed(f"archive/{name}: {what}", _EDITED) for what in problems]
    if found:
        return found
    return checks.ok(f"{render.count(len(names), 'pivot')}: every file is what its manifest says")


def _journal(evidence: Evidence) -> str:
    """Return the name of the archive of a pivot in flight, if there is one."""
    try:
        journal = pivot.read(evidence.run)
    except (AndreadError, OSError):
        return ""
    return journal.archive if journal else ""


def _files(folder: Path, manifest: Table) -> list[str]:
    """Return what differs between the files of an archive and its manifest."""
    problems, kept = [], loose.table(manifest.get("files"))
    if not kept:
        return ["its manifest lists no files"]
    for name, recorded in kept.items():
        try:
            data = files.read_bytes(folder / Path(name).name, files.UNLIMITED)
        except FileNotFoundError:
            if recorded is not None:
                problems.append(f"{name} is missing")
            continue
        except DataError as error:
            problems.append(error.message)
            continue
        if loose.table(recorded).get("sha256") != hashlib.sha256(data).hexdigest():
            problems.append(f"{name} is not what its manifest says")
    listed = {*kept, pivot.MANIFEST}
    problems += [
        f"{path.name} is not its own" for path in folder.iterdir() if path.name not in listed
    ]
    return problems


def _lineage(evidence: Evidence, folder: Path, manifest: Table) -> list[str]:
    """Return what contradicts policy.json and the companions in the manifest of an archive."""
    problems: list[str] = []
    step, ids = manifest.get("step"), loose.table(manifest.get("policy"))
    now = evidence.policies or []
    try:
        before: list[Policy] = policy.read_policies(folder / evidence.run.policy.name)
    except AndreadError:
        return problems  # told by its hash
    if now and [each.id for each in now[: len(before)]] != [each.id for each in before]:
        problems.append("policy.json does not go on from the policies archived there")
    if ids.get("old") != before[-1].id:
        problems.append(f"its manifest names {ids.get('old')} as the policy before it")
    new = next((each for each in now if each.id == ids.get("new")), None)
    if now and new is None:
        problems.append(f"its policy {ids.get('new')} is not in policy.json")
    elif new is not None and new.begins_after != step:
        problems.append(f"its policy {new.id} begins after step {new.begins_after}, not {step}")
    companion = evidence.companions.get(step) if isinstance(step, int) else None
    recorded = loose.table(manifest.get("checkpoint")).get("file")
    if companion is not None and recorded != companion.sha256:
        problems.append(f"its manifest tells another hash of the checkpoint of step {step}")
    return problems


def zombies(evidence: Evidence) -> Looked:
    """Name the arms on record that have no source."""
    if evidence.settings is None:
        return checks.skipped(_UNREADABLE)
    mixer = loose.table(evidence.newest.curriculum.get("mixer")) if evidence.newest else {}
    live = set(evidence.settings.source_names())
    gone = sorted(loose.table(mixer.get("arms")).keys() - live)
    known = [loose.text(each.get("name")) for each in loose.tables(mixer.get("zombies"))]
    found = []
    if gone:
        what = f"{', '.join(gone)} left run.toml: the next start names each as a zombie"
        found.append(checks.warning(what, "they are never pulled or counted; a pivot clears them"))
    if known:
        what = f"on record without a source: {', '.join(known)}"
        found.append(checks.warning(what, "they are never pulled or counted; a pivot clears them"))
    return found or checks.ok(f"none: every arm has its source ({len(live)})")


def tokens(evidence: Evidence) -> Looked:
    """Compare the tokens of each source with their manifest and with what was trained on."""
    from andread.curriculum.tokens import open_source

    if evidence.settings is None:
        return checks.skipped(_UNREADABLE)
    found, read = [], 0
    trained = evidence.newest.data if evidence.newest else {}
    for name in evidence.settings.source_names():
        try:
            source = open_source(evidence.run, name, evidence.settings.model.context)
        except AndreadError as error:
            found.append(checks.of_error(error))
            continue
        try:
            if evidence.deep:
                source.verify()
            read += sum(source.manifest.size(split) for split in ("train", "validation"))
        except AndreadError as error:
            found.append(checks.of_error(error))
        finally:
            source.close()
        if trained.get(name, source.fingerprint) != source.fingerprint:
            what = f"the tokens of {name} are not those that the run was trained on"
            found.append(checks.failed(what, "restore the run's data folder"))
    if found:
        return found
    how = "every byte is" if evidence.deep else "sizes and manifests are (--deep reads them)"
    count = render.count(len(evidence.settings.sources), "source")
    return checks.ok(f"{count}, {render.size(read)}: {how} as prepared and as trained on")


def tokenizer(evidence: Evidence) -> Looked:
    """Compare tokenizer.json with the hash in each source's manifest."""
    if evidence.settings is None:
        return checks.skipped(_UNREADABLE)
    path = evidence.run.tokenizer
    try:
        digest = hashlib.sha256(files.read_bytes(path, files.UNLIMITED)).hexdigest()
    except FileNotFoundError:
        raise MissingError(f"{path} does not exist", "run `andrectl prepare`") from None
    other = []
    for name in evidence.settings.source_names():
        try:
            if read_manifest(evidence.run.manifest(name)).tokenizer != digest:
                other.append(name)
        except AndreadError:
            continue  # told by the check of the tokens
    if other:
        return checks.failed(
            f"{path.name} is not the one that made the tokens of {', '.join(other)}",
            "restore it from a backup: audits would show other text",
        )
    return checks.ok(f"{path.name} is the one that made the tokens")
