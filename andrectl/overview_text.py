"""The overview of a run as text for a terminal."""

from __future__ import annotations

import click

from andrectl import change, loose, render
from andrectl.loose import Table
from andrectl.overview import WINDOW

_COLOURS = {"running": "green", "stopped": "yellow", "never started": "yellow"}


def text(view: Table) -> str:
    """Return `view`, as `overview.overview` gives it, as lines."""
    lines = [_headline(view)]
    for label, value in _facts(view):
        if value:
            lines.append(f"{label:<12}{value}")
    lines += _sources(view)
    lines += [click.style(f"! {line}", fg="red") for line in _trouble(view)]
    return "\n".join(lines)


def _headline(view: Table) -> str:
    """Return the run's path and state."""
    state = view["state"]
    parts = [click.style(state, fg=_COLOURS.get(state, "red"), bold=True)]
    if state == "running":
        parts += [view["phase"], f"pid {view['pid']}", _supervisor(view["supervisor"])]
        parts += [view["device"] or ""]
    elif view["finished"]:
        parts.append("finished")
    elif state == "stopped" and view["stopped"]:
        stopped = view["stopped"]
        parts.append(f"{loose.text(stopped.get('why'))} (exit code {stopped.get('exit_code')})")
    return f"{view['run']}: " + ", ".join(part for part in parts if part)


def _supervisor(told: Table | None) -> str:
    """Return who supervises the daemon, in a few words."""
    told = told or {}
    return loose.text(told.get("unit") or told.get("kind"))


def _facts(view: Table) -> list[tuple[str, str]]:
    """Return the labelled lines; those without a value are left out."""
    return [
        ("unit", _service(view["service"])),
        ("step", _progress(view)),
        ("pace", _pace(view)),
        ("loss", _loss(view)),
        ("checkpoint", _checkpoint(view)),
        ("kept", _kept(view)),
        ("policy", _policy(view)),
        ("validation", _validation(view["validation"])),
        ("replay", _replay(view["replay"])),
        ("waiting", view["waiting"]),
        ("requests", ", ".join(_request(request) for request in view["requests"])),
        ("pivot", _pivot(view["pivot"])),
        ("fork of", _fork(view["lineage"])),
        ("forks", f"{view['forks']:,}: andrectl lineage" if view["forks"] else ""),
    ]


def _service(told: Table | None) -> str:
    """Return the unit, its state, its restarts and its watchdog."""
    if not told:
        return ""
    user = " of the user" if told["manager"] == "user" else ""
    state = f"{told['active'] or 'unknown'} ({told['sub'] or 'unknown'})"
    failed = "" if told["result"] in (None, "success") else f", {told['result']}"
    return (
        f"{told['unit']}{user}, {state}{failed}, {told['enabled'] or 'not enabled'}, "
        f"{render.count(told['restarts'], 'restart')}, watchdog {told['watchdog'] or 'off'}"
    )


def _progress(view: Table) -> str:
    step, steps = view["step"], view["steps"]
    if not steps:
        return f"{step:,}"
    return f"{step:,} of {steps:,} {render.bar(step / steps)} {step / steps:.1%}"


def _pace(view: Table) -> str:
    if not view["steps_per_minute"]:
        return ""
    left = render.duration(view["eta_seconds"])
    return f"{view['steps_per_minute']:.3g} steps a minute, {left} to go"


def _loss(view: Table) -> str:
    if view["loss"] is None:
        return ""
    mean, before = view["loss_mean"], view["loss_mean_before"]
    trend = "" if before is None else f", {mean - before:+.4f} on those before"
    line = render.sparkline(view["losses"], 24)
    count = min(WINDOW, len(view["losses"]))
    return f"{view['loss']:.4f}  mean {mean:.4f} of the last {count}{trend}  {line}"


def _checkpoint(view: Table) -> str:
    newest = view["checkpoint"]
    if not newest:
        return "none yet"
    age = render.duration(newest["age_seconds"])
    return (
        f"step {newest['step']:,}, {age} old, {render.size(newest['bytes'])}, "
        f"sha256 {newest['sha256'][:12]}… ({', '.join(newest['reasons'])})"
    )


def _kept(view: Table) -> str:
    kept, disk = view["kept"], view["disk"]
    more = disk["more_checkpoints"]
    fit = "" if more is None else f": {more:,} more fit"
    count = render.count(kept["count"], "checkpoint")
    return (
        f"{count}, {render.size(kept['bytes'])}, {kept['pinned']} pinned; "
        f"{render.size(disk['free_bytes'])} free{fit}"
    )


def _policy(view: Table) -> str:
    now = view["policy"]
    if not now:
        return ""
    phase = view["curriculum_phase"]
    where = f", phase {phase['name']}" if phase else ""
    if phase and phase["of"]:
        where += f" ({phase['steps'] or 0:,.0f} of {phase['of']:,.0f} steps)"
    return f"{now['id']} ({now['algorithm']}) since step {now['begins_after'] + 1:,}{where}"


def _validation(audit: Table | None) -> str:
    if not audit or audit["mean"] is None:
        return ""
    losses = ", ".join(f"{name} {render.number(x)}" for name, x in audit["sources"].items())
    return f"mean {render.number(audit['mean'])} at step {audit['step']:,}" + (
        f" ({losses})" if losses else ""
    )


def _replay(verdict: Table | None) -> str:
    if not verdict:
        return ""
    span = f"steps {verdict.get('from')} to {verdict.get('to')}"
    if verdict.get("verdict") == "exact":
        return f"{span}: exact"
    text = f"{span}: differs, by {verdict.get('largest')} at most, first at {verdict.get('first')}"
    return click.style(f"{text} ({loose.text(verdict.get('detail'))})", fg="red")


def _request(request: Table) -> str:
    hold = ", holding" if request["hold"] else ""
    return f"{request['id']} (at {loose.text(request['at'])}{hold})"


def _pivot(pending: Table | None) -> str:
    if not pending:
        return ""
    if doing := pending["doing"]:
        what = f"{loose.text(doing['step'])}/6 {loose.text(doing['doing'])}"
        return f"in flight (pid {pending['pid']}): {what}"
    if pending["committed"]:
        step = loose.whole(pending["step"])
        return f"committed after step {step:,}, its proof is missing: andrectl pivot --resume"
    return "left behind, nothing has changed yet: andrectl pivot --resume, or --abort"


def _fork(origin: Table | None) -> str:
    """Return the parent, the step, and what was changed."""
    if not origin:
        return ""
    changes = ", ".join(map(change.described, origin["changes"])) or "nothing changed"
    return f"{loose.text(origin['parent'])}, after step {origin['step']:,}: {changes}"


def _sources(view: Table) -> list[str]:
    """Return the table of sources."""
    if not any(source["pulls"] or source["probability"] for source in view["sources"]):
        names = ", ".join(source["name"] for source in view["sources"])
        return [f"{'sources':<12}{names}"] if names else []
    rows = []
    for source in view["sources"]:
        share = source["share"] or 0.0
        floor, cap = source["floor"] or 0.0, 1.0 if source["cap"] is None else source["cap"]
        rows.append(
            [
                source["name"],
                render.bounded_bar(share, floor, cap, 16),
                f"{share:.1%}",
                render.percent(source["probability"]),
                f"{source['pulls']:,}",
                render.number(source["epochs"], 2),
                render.number(source["ema_loss"], 3),
            ]
        )
    rows += [
        [arm["name"], "zombie", "-", "-", f"{arm['pulls']:,}", "-", "-"]
        for arm in view["zombie_arms"]
    ]
    headers = ["source", "", "share", "next", "pulls", "epochs", "loss"]
    return [render.table(headers, rows, left=(0, 1))]


def _trouble(view: Table) -> list[str]:
    """Return what needs a person's eye."""
    lines = []
    if view["stuck"]:
        silent = render.duration(view["silent_seconds"])
        lines.append(f"no word from the daemon for {silent}: it may be stuck (see andread.log)")
    if view["alarm"]:
        lines.append(f"alarm: {view['alarm']}")
    for event in view["trouble"]:
        what = loose.text(event.get("what") or event["event"])
        lines.append(f"{what}: {loose.text(event.get('detail') or event.get('why'))}")
    if view["skipped_steps"]:
        lines.append(
            f"{render.count(view['skipped_steps'], 'step')} not applied since the last start"
        )
    if view["spikes"]:
        lines.append(f"{render.count(view['spikes'], 'loss spike')} since the last start")
    lines += [
        f"zombie arm {arm['name']}: it has no source; it held {render.count(arm['pulls'], 'pull')} "
        f"and weight {render.number(arm['weight'], 3)}; not pulled, not counted, on record until "
        "the next pivot"
        for arm in view["zombie_arms"]
    ]
    lines += [f"{name}: found invalid and set aside" for name in view["rejected"]]
    lines += [f"{item['file']}: {item['problem']}" for item in view["damaged"]]
    return lines
