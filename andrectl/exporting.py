"""The loss history with its events, for other tools: csv, JSON lines, TensorBoard.

csv       one row a step: step, t, loss, lr, grad_norm, skipped, policy, pulls.SOURCE…,
          validation.mean, validation.SOURCE…, events (their kinds, with spaces between)
jsonl     {"kind": "step", …} as in the history, {"kind": "event", …} as in the events, in order
tensorboard  scalars loss, lr, grad_norm, pulls/SOURCE, validation/SOURCE; text events/KIND

All of it is streamed. A step that was not applied is kept: its loss is empty, null or NaN. csv and
jsonl hold floats exactly; TensorBoard's scalars have 32 bits.
"""

from __future__ import annotations

import bisect
import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

import orjson

from andread.rundir import events, history, policy
from andread.rundir.errors import AndreadError
from andread.rundir.layout import RunDirectory
from andrectl import extras, loose

Table = dict[str, Any]
_FIGURES: Final = ("loss", "lr", "grad_norm")


@dataclass
class Told:
    """The events of a run, each at the step that it belongs to."""

    first: list[Table] = field(default_factory=list)
    """Those of step 0."""
    at: dict[int, list[Table]] = field(default_factory=dict)
    between: list[Table] = field(default_factory=list)
    """Those without a step, by time."""

    def take(self, step: int, t: float | None) -> list[Table]:
        """Return, once, the events of `step` and those without one until its time `t`."""
        found = self.at.pop(step, [])
        while self.between and t is not None and self.between[0]["t"] <= t:
            found.append(self.between.pop(0))
        return found

    def rest(self) -> list[Table]:
        """Return what belongs to no recorded step."""
        left = [event for step in sorted(self.at) for event in self.at[step]]
        return [*left, *self.between]


def told(run: RunDirectory) -> Told:
    """Read the events of `run`."""
    made = Told()
    for event in events.read(run.events):
        step = event.get("step")
        if not isinstance(step, int):
            made.between.append(event)
        elif step < 1:
            made.first.append(event)
        else:
            made.at.setdefault(step, []).append(event)
    made.between.sort(key=lambda event: float(event["t"]))
    return made


def entries(run: RunDirectory) -> Iterator[Table]:
    """Yield the entries of the history of `run`; those without a step are torn."""
    return (entry for entry in history.read(run.history) if isinstance(entry.get("step"), int))


def to_jsonl(run: RunDirectory, stream: BinaryIO) -> tuple[int, int]:
    """Write the run as JSON lines; return how many steps and how many events."""
    said = told(run)
    steps = others = 0

    def tell(found: list[Table]) -> int:
        for event in found:
            stream.write(orjson.dumps({"kind": "event", **event}, option=orjson.OPT_APPEND_NEWLINE))
        return len(found)

    others += tell(said.first)
    for entry in entries(run):
        stream.write(orjson.dumps({"kind": "step", **entry}, option=orjson.OPT_APPEND_NEWLINE))
        steps += 1
        others += tell(said.take(entry["step"], entry.get("t")))
    return steps, others + tell(said.rest())


def to_csv(run: RunDirectory, stream: TextIO) -> tuple[int, int]:
    """Write the run as one table; return how many steps and how many events."""
    said = told(run)
    sources = _sources(run)
    audited = sorted(
        {
            name
            for found in said.at.values()
            for event in found
            if event["event"] == "audit"
            for name in loose.table(event.get("validation"))
        }
    )
    begins, ids = _policies(run)
    writer = csv.writer(stream, lineterminator="\n")
    header = ["step", "t", *_FIGURES, "skipped", "policy"]
    header += [f"pulls.{name}" for name in sources]
    header += ["validation.mean", *(f"validation.{name}" for name in audited), "events"]
    writer.writerow(header)
    steps = others = 0
    for entry in entries(run):
        step = entry["step"]
        found = said.take(step, entry.get("t"))
        audit = next((e for e in reversed(found) if e["event"] == "audit"), {})
        losses = loose.table(audit.get("validation"))
        pulls = entry.get("pulls", {})
        row = [step, entry.get("t"), *(entry.get(key) for key in _FIGURES), entry.get("skipped")]
        row.append(ids[bisect.bisect_left(begins, step) - 1] if ids else None)
        row += [pulls.get(name, 0) for name in sources]
        row += [audit.get("mean"), *(losses.get(name) for name in audited)]
        row.append(" ".join(dict.fromkeys(event["event"] for event in found)))
        writer.writerow(row)
        steps, others = steps + 1, others + len(found)
    return steps, others


def to_tensorboard(run: RunDirectory, directory: Path) -> tuple[int, int]:
    """Write the run into an event file in `directory`; return how many steps and events."""
    what = "an export to TensorBoard"
    writers = extras.need("tensorboardX.event_file_writer", "tensorboard", what)
    event_proto = extras.need("tensorboardX.proto.event_pb2", "tensorboard", what)
    summary_proto = extras.need("tensorboardX.proto.summary_pb2", "tensorboard", what)
    texts = extras.need("tensorboardX.summary", "tensorboard", what)
    said = told(run)
    sources = _sources(run)
    writer = writers.EventsWriter(str(directory / "events"))
    steps = others = 0

    def put(step: int, t: float, summary: Any) -> None:
        writer.write_event(event_proto.Event(wall_time=t, step=step, summary=summary))

    def tell(step: int, found: list[Table]) -> int:
        for event in found:
            if event["event"] == "audit":
                losses = loose.table(event.get("validation")) | {"mean": event.get("mean")}
                named = {f"validation/{k}": v for k, v in losses.items() if v is not None}
                put(step, event["t"], _scalars(summary_proto, named))
            text = "\n".join(f"    {key}: {value}" for key, value in event.items())
            put(step, event["t"], texts.text(f"events/{event['event']}", text))
        return len(found)

    try:
        others += tell(0, said.first)
        step = 0
        for entry in entries(run):
            step = entry["step"]
            loss = entry.get("loss")
            named = {key: entry[key] for key in _FIGURES if entry.get(key) is not None}
            named["loss"] = math.nan if loss is None else loss
            pulls = entry.get("pulls", {})
            named |= {f"pulls/{name}": pulls.get(name, 0) for name in sources}
            put(step, entry.get("t", 0.0), _scalars(summary_proto, named))
            steps += 1
            others += tell(step, said.take(step, entry.get("t")))
        others += tell(step, said.rest())
    finally:
        writer.close()
    return steps, others


def _scalars(proto: Any, named: dict[str, float]) -> Any:
    """Return one summary that holds every figure of `named`."""
    value = proto.Summary.Value
    return proto.Summary(value=[value(tag=k, simple_value=v) for k, v in named.items()])


def _sources(run: RunDirectory) -> list[str]:
    """Return every source that the run ever pulled, in the order of their first pull."""
    names: dict[str, None] = {}
    for entry in entries(run):
        names.update(dict.fromkeys(entry.get("pulls", {})))
    return list(names)


def _policies(run: RunDirectory) -> tuple[list[int], list[str]]:
    """Return after which step each policy begins, and its id.

    Both are empty if policy.json cannot be read: so is their column then.
    """
    try:
        listed = policy.read_policies(run.policy)
    except AndreadError:
        return [], []
    return [each.begins_after for each in listed], [each.id for each in listed]
