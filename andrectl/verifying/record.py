"""What the run has written down: the loss history and who vouches for it, events, audits, state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson

from andread.rundir import clock, files, samples
from andread.rundir.companion import Companion
from andread.rundir.layout import step_name
from andread.rundir.policy import policy_at
from andread.rundir.survey import Fault
from andrectl import checks, loose, render
from andrectl.checks import Looked, Outcome
from andrectl.verifying.evidence import Evidence, Table

_RESTORE: Final = "restore .loss.json from a backup; a start refuses a record that was changed"
_SHOWN: Final = 5


def steps(evidence: Evidence) -> Looked:
    """Go through the whole history: one entry a step, none removed, doubled or out of order."""
    survey = evidence.survey
    if survey is None:
        if not evidence.begun:
            return checks.ok("the run has not begun: there is no history yet")
        return checks.failed(f"{evidence.run.history.name} is missing", _RESTORE)
    vouched = max((each.history_length for each in evidence.companions.values()), default=0)
    cut = min(
        (f.offset for f in survey.faults if f.kind == "torn" and f.offset >= vouched), default=None
    )
    ends = [fault for fault in survey.faults if cut is not None and fault.offset >= cut]
    found = [_wrong(fault) for fault in survey.faults if fault not in ends][:_SHOWN]
    if len(survey.faults) > _SHOWN:
        found.append(checks.failed(f"{len(survey.faults)} faults or more in all", _RESTORE))
    base = _base(evidence)
    if survey.entries and survey.first not in {1, base + 1} and survey.first > _forked(evidence):
        found.append(checks.failed(f"it begins at step {survey.first}, not {base + 1}", _RESTORE))
    if ends and not evidence.running:  # a daemon may be writing just there
        found.append(
            checks.warning(
                f"torn from byte {ends[0].offset:,} of {survey.size:,} on: {ends[0].what}",
                "the next start cuts it off and computes those steps again",
            )
        )
    owner = evidence.owner
    same_boot = owner.boot == clock.boot_id() and not owner.alarm
    if same_boot and owner.step > max(survey.last, base):
        found.append(
            checks.failed(
                f"it ends at step {survey.last}, and the daemon had recorded step {owner.step}",
                _RESTORE,
            )
        )
    if found:
        return found
    if not survey.entries:
        return checks.ok("no step is recorded yet")
    return checks.ok(
        f"{render.count(survey.entries, 'step')}, {survey.first}…{survey.last}, each recorded once"
    )


def _wrong(fault: Fault) -> Outcome:
    return checks.failed(f"at byte {fault.offset:,}: {fault.what}", _RESTORE)


def _base(evidence: Evidence) -> int:
    """Return the step that the run began after: that of an import, else 0."""
    known = [found.step for found in evidence.companions.values() if "import" in found.reasons]
    told = [
        loose.whole(event.get("step"))
        for event in evidence.events
        if event["event"] == "checkpoint" and event.get("reasons") == ["import"]
    ]
    return min(known + told, default=0)


def _forked(evidence: Evidence) -> int:
    """Return the first step of a fork's own: its history begins where that of its parent did."""
    known = [each.step + 1 for name, each in evidence.lineage.items() if "/" not in name]
    told = [loose.whole(e.get("step")) + 1 for e in evidence.events if e["event"] == "fork"]
    return max(known + told, default=0)


def vouched(evidence: Evidence) -> Looked:
    """Compare the part of the history that each checkpoint and pivot vouches for with the file."""
    survey = evidence.survey
    claims = list(_claims(evidence))
    if survey is None or not claims:
        return checks.skipped("no checkpoint vouches for a history")
    wrong = []
    for who, step, length, digest in claims:
        found = survey.digests.get(length)
        if found is None:
            wrong.append((step, f"{who} vouches for {length:,} bytes, there are {survey.size:,}"))
        elif found != digest:
            wrong.append((step, f"the first {length:,} bytes are not those that {who} vouches for"))
        elif survey.ends.get(step, length) != length:
            wrong.append((step, f"{who} vouches for another length than step {step} ends at"))
    if not wrong:
        longest = max(length for _, _, length, _ in claims)
        whom = render.count(len(claims), "record")
        return checks.ok(f"{longest:,} of {survey.size:,} bytes are as vouched for by {whom}")
    newest = evidence.newest
    accepted = any(event["event"] == "history_fault" for event in evidence.events)
    if accepted and newest is not None and newest.step not in {step for step, _ in wrong}:
        return checks.warning(
            f"{wrong[0][1]}: accepted by start --accept-history", "later checkpoints vouch anew"
        )
    return [checks.failed(what, _RESTORE) for _, what in wrong[:_SHOWN]]


def _claims(evidence: Evidence) -> Iterator[tuple[str, int, int, str]]:
    """Yield who vouches: its name, step, length and hash."""
    for step, found in sorted(evidence.companions.items()):
        yield f"{step_name(step)}.json", step, found.history_length, found.history_sha256
    for name, manifest in evidence.manifests.items():
        kept = loose.table(manifest.get("history"))
        if isinstance(kept.get("bytes"), int):
            step = loose.whole(manifest.get("step"))
            yield f"archive/{name}", step, kept["bytes"], loose.text(kept.get("sha256"))


def events_told(evidence: Evidence) -> Looked:
    """Read the events; what they say of checkpoints and policies must be what is there."""
    path = evidence.run.events
    try:
        with files.opened(path) as descriptor, files.stream(descriptor) as stream:
            lines = list(stream)
    except FileNotFoundError:
        if not evidence.begun:
            return checks.ok("nothing has happened yet")
        return checks.warning(f"{path.name} is missing", "what happened to the run is not known")
    if evidence.running and lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    torn = [number for number, line in enumerate(lines, 1) if not _is_event(line)]
    found = []
    if torn:
        shown = ", ".join(map(str, torn[:_SHOWN]))
        found.append(
            checks.warning(
                f"{render.count(len(torn), 'line')} of {path.name} cannot be read: line {shown}",
                "readers skip them; a power cut may tear one, an edit too",
            )
        )
    hashes = {e.get("step"): e.get("sha256") for e in evidence.events if e["event"] == "checkpoint"}
    for step, companion in sorted(evidence.companions.items()):
        if hashes.get(step, companion.sha256) != companion.sha256:
            found.append(
                checks.failed(
                    f"{path.name} and {step_name(step)}.json tell different hashes of it",
                    "one of them was changed: --deep tells which",
                )
            )
    return found or checks.ok(f"{render.count(len(lines), 'event')}, each of them readable")


def _is_event(line: bytes) -> bool:
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return isinstance(event, dict) and {"event", "t", "up"} <= event.keys()


def samples_of_audits(evidence: Evidence) -> Looked:
    """Read the recent audits; their figures must be those that the events told."""
    content = samples.read(evidence.run.samples)
    audits = content["audits"]
    told = {e.get("step"): e for e in evidence.events if e["event"] == "audit"}
    for audit in audits:
        event = told.get(audit["step"])
        if event and any(audit.get(key) != event.get(key) for key in ("validation", "mean")):
            return checks.failed(
                f"the audit of step {audit['step']} is not what the events told of it",
                "one of the two was changed; nothing is resumed from them",
            )
    at = [audit["step"] for audit in audits]
    if at != sorted(set(at)):
        return checks.failed(f"audits out of order: {at}", "they were changed; training goes on")
    ids = {policy.id for policy in evidence.policies or []}
    if content["policy"] and ids and content["policy"] not in ids:
        return checks.failed(
            f"they are of policy {content['policy']}, which the run never had",
            "the next start resets them",
        )
    return checks.ok(render.count(len(audits), "audit"))


def state(evidence: Evidence) -> Looked:
    """Compare .state.json with what the companion of the same step gives when it is restored."""
    path = evidence.run.state
    try:
        told = files.read_json(path)
    except FileNotFoundError:
        if not any(event["event"] == "started" for event in evidence.events):
            return checks.ok("no daemon has started yet: there is none")
        return checks.warning(f"{path.name} is missing", "the next start writes it anew")
    anew = "it is for people: the next start writes it anew"
    if not isinstance(told, dict) or not isinstance(told.get("arms"), dict):
        return checks.failed(f"{path.name} is not a curriculum's state", anew)
    step = loose.whole(told.get("step"))
    companion = evidence.companions.get(step)
    if companion is None:
        if evidence.running:
            return checks.skipped(f"the checkpoint of step {step} came or went just now")
        return checks.failed(f"it is of step {step}, of which there is no checkpoint", anew)
    recorded = loose.table(loose.table(companion.curriculum.get("mixer")).get("arms"))
    live = evidence.settings.source_names() if evidence.settings else recorded
    if {*told["arms"]} not in ({*recorded}, {*live}):
        return checks.failed(f"its arms are neither those of step {step} nor the sources", anew)
    expected = _expected_state(evidence, companion, told)
    if expected is None:
        return checks.skipped("sources or tokens are others than when it was written")
    if orjson.loads(orjson.dumps(expected)) != told:
        keys = [key for key in expected if expected[key] != told.get(key)]
        return checks.failed(
            f"it is not what the checkpoint of step {step} gives ({', '.join(keys) or 'keys'})",
            anew,
        )
    return checks.ok(f"as the companion of step {step} gives it")


def _expected_state(evidence: Evidence, companion: Companion, told: Table) -> Table | None:
    """Return the state that the curriculum of `companion` shows; None if that cannot be told."""
    from andread.curriculum.batches import Curriculum
    from andread.curriculum.tokens import open_source
    from andread.rundir.errors import AndreadError

    made, policies, step = evidence.settings, evidence.policies, companion.step
    if made is None or policies is None or {*told["arms"]} != {*made.source_names()}:
        return None
    if told.get("policy") != policy_at(policies, step + 1).id:  # of before the pivot
        policies = [policy for policy in policies if policy.begins_after < step] or policies
    try:
        sources = [open_source(evidence.run, n, made.model.context) for n in made.source_names()]
        curriculum = Curriculum(
            sources, policies, made.run.draw_seed, lambda _: 1, made.model.context, step,
            companion.curriculum,
        )  # fmt: skip
    except (AndreadError, OSError):
        return None
    view: dict[str, Any] = {"format": 1, **curriculum.view(), "step": step}
    for source in sources:
        source.close()
    return view
