"""Where the run comes from and what was forked off it: the records of `.lineage.json` and forks/.

A parent or a fork that is gone or elsewhere is no fault: neither needs the other.
"""

from __future__ import annotations

from andread.rundir import commit, files
from andread.rundir import lineage as records
from andread.rundir.errors import DataError
from andread.rundir.layout import RunDirectory
from andread.rundir.lineage import Record
from andrectl import checks, loose, render
from andrectl.checks import Looked, Outcome
from andrectl.loose import Reader
from andrectl.verifying.evidence import Evidence, Table

_INFORMATION = "it is information only, nothing is resumed from it: restore it from a backup"


def lineage(evidence: Evidence) -> Looked:
    """Tell whether a fork is what its record says."""
    run = evidence.run
    record = records.read(run.lineage)
    told = next((event for event in evidence.events if event["event"] == "fork"), None)
    if record is None:
        if told is None:
            return checks.ok("the run is no fork")
        return checks.warning(f"{run.lineage.name} is gone: the run is a fork", _INFORMATION)
    found = _contradictions(evidence, run.lineage.name, record, told)
    if told is not None and told.get("parent") != record.parent:
        found.append(_other(run.lineage.name, "parent", "the events tell"))
    begun = {each.id for each in evidence.policies or [] if each.begins_after <= record.step}
    if evidence.policies is not None and record.policy not in begun:
        found.append(_other(run.lineage.name, "policy", "policy.json has"))
    parent = RunDirectory(record.parent)
    there = Reader().attempt(parent.path, lambda: records.is_the_parent(parent, record))
    gone = "" if there else ", which is not there now, nor needed"
    return found or checks.ok(f"a fork at step {record.step:,} of {parent.path}{gone}")


def forks(evidence: Evidence) -> Looked:
    """Tell whether the forks that were made of the run are what is recorded of them."""
    run, found, there = evidence.run, [], 0
    paths = records.forks(run)
    told = {loose.text(e.get("id")): e for e in evidence.events if e["event"] == "forked"}
    for path in paths:
        name = f"{run.forks.name}/{path.name}"
        try:
            record = records.read(path)
        except DataError as error:
            found.append(checks.of_error(error))
            continue
        if record is None:
            continue
        event = told.get(path.stem)
        found += _contradictions(evidence, name, record, event)
        if record.id != path.stem:
            found.append(_other(name, "id", "its name tells"))
        if event is not None and event.get("path") != record.fork:
            found.append(_other(name, "fork", "the events tell"))
        fork = RunDirectory(record.fork)
        if not Reader().attempt(fork.path, lambda f=fork, r=record: records.is_the_fork(f, r)):  # type: ignore[misc]
            continue
        there += 1
        if files.exists(run.checkpoint(record.step)) and record.step not in commit.pinned(run):
            found.append(
                checks.warning(
                    f"{name}: the checkpoint of step {record.step} that it was made of is not "
                    "pinned any more",
                    f"andrectl checkpoints --pin {record.step}, unless that was meant",
                )
            )
    for id_ in sorted(told.keys() - {path.stem for path in paths}):
        found.append(checks.warning(f"{run.forks.name}/{id_}.json is gone", _INFORMATION))
    if not paths and not found:
        return checks.ok("none was made")
    return found or checks.ok(f"{render.count(len(paths), 'fork')} on record, {there} there now")


def _contradictions(
    evidence: Evidence, name: str, record: Record, event: Table | None
) -> list[Outcome]:
    """Return what is another in a record than in the event of the fork, companion and history."""
    found = []
    if event is not None:
        same = {"id": record.id, "step": record.step, "sha256": record.sha256}
        same["changes"] = list(record.changes)
        wrong = [key for key, value in same.items() if event.get(key) != value]
        found += [_other(name, key, "the events tell") for key in wrong]
    companion = evidence.companions.get(record.step)
    if companion is not None and companion.sha256 != record.sha256:
        found.append(_other(name, "sha256", f"the companion of step {record.step} has"))
    survey = evidence.survey
    if survey and survey.digests.get(record.history_length) != record.history_sha256:
        accepted = any(each["event"] == "history_fault" for each in evidence.events)
        told = checks.warning if accepted else checks.failed
        what = f"the first {record.history_length:,} bytes of {evidence.run.history.name}"
        hint = "the check vouched tells whether the history was changed; else this record was"
        found.append(told(f"{name}: {what} are not those that it tells of", hint))
    return found


def _other(name: str, key: str, who: str) -> Outcome:
    return checks.failed(f"{name}: another {key} than {who}", _INFORMATION)
