"""The policy in force, and how each arm stands against its bounds."""

from __future__ import annotations

from typing import Any, Final

import click

from andread.rundir import feasibility
from andread.rundir.errors import ConfigError
from andread.rundir.layout import RunDirectory
from andread.rundir.policy import BanditSettings, Policy, policy_at, read_policies
from andread.rundir.run_toml import read_settings
from andrectl import loose, render
from andrectl.loose import Table
from andrectl.overview import overview

_CLOSE: Final = 1e-9
"""A share this near a bound is at it."""


def standing(run: RunDirectory) -> Table:
    """Return the policy in force at the next step and every arm's place in it.

    Raises what reading run.toml and policy.json raises.
    """
    live = read_settings(run.settings).source_names()
    policies = read_policies(run.policy)
    view = overview(run)
    step = view["step"]
    policy = policy_at(policies, step + 1)
    problem, left = None, policy.without(sorted(policy.named() - set(live)))
    try:
        feasibility.obeyed(policy, live, step)
    except ConfigError as error:
        problem = error.message
    return {
        "run": str(run.path),
        "state": view["state"],
        "next_step": step + 1,
        "policy": {"id": policy.id, **policy.content()},
        "phase": view["curriculum_phase"],
        "warming": policy.warming(step + 1),
        "sources": [_arm(left, arm, step) for arm in view["sources"]],
        "zombies": view["zombie_arms"],
        "ignored": sorted(policy.named() - set(live)),
        "problem": problem,
        "policies": [
            {"id": each.id, "begins_after": each.begins_after, "algorithm": each.algorithm}
            for each in policies
        ],
        "damaged": view["damaged"],
    }


def _arm(policy: Policy, arm: Table, step: int) -> Table:
    """Return an arm with the bounds of `policy`, and in a word where it stands."""
    floor, cap = policy.floors.get(arm["name"], 0.0), policy.caps.get(arm["name"], 1.0)
    share = arm["probability"]
    stands = ""
    if not policy.live(step + 1, (arm["name"],)):
        stands = "waits for the end of the warm-up"
    elif policy.max_epochs and (arm["epochs"] or 0.0) > policy.max_epochs:
        stands = "sunk: read often enough"
    elif share is not None and floor == cap:
        stands = "fixed by its bounds"
    elif share is not None and cap < 1 and share >= cap - _CLOSE:
        stands = "at its cap"
    elif share is not None and floor > 0 and share <= floor + _CLOSE:
        stands = "at its floor"
    return {**arm, "floor": floor, "cap": cap, "standing": stands}


def text(view: Table) -> str:
    """Return `view` as lines for a terminal."""
    now = view["policy"]
    lines = [f"{view['run']}: policy {now['id']} ({now['algorithm']})"]
    facts = [
        ("since", f"step {now['begins_after'] + 1:,}{_place(view)}"),
        ("phase", _phase(view)),
        ("weights", _shares(now["weights"])),
        ("epochs", f"at most {now['max_epochs']:g} of a source" if now["max_epochs"] else ""),
        ("bandit", _bandit(now)),
        ("overrides", ", ".join(f"{key} = {value}" for key, value in now["overrides"].items())),
    ]
    lines += [f"{label:<12}{value}" for label, value in facts if value]
    lines.append(_arms(view))
    lines += [
        click.style(
            f"! {name} is named by the policy and is no source: what it says of it is ignored",
            fg="yellow",
        )
        for name in view["ignored"]
    ]
    if view["problem"]:
        lines.append(click.style(f"! the next start will be refused: {view['problem']}", fg="red"))
    lines += [f"{item['file']}: {item['problem']}" for item in view["damaged"]]
    return "\n".join(lines)


def _place(view: Table) -> str:
    """Return which of how many policies it is."""
    ids = [each["id"] for each in view["policies"]]
    if len(ids) == 1:
        return ""
    return f", number {ids.index(view['policy']['id']) + 1} of {len(ids)}"


def _phase(view: Table) -> str:
    warmup = view["policy"]["warmup"]
    if not view["warming"]:
        return "all sources"
    return f"warm-up of {warmup['steps']:,} steps on {', '.join(warmup['sources'])}"


def _bandit(now: Table) -> str:
    """Return the bandit's settings where they are not the defaults."""
    if now["algorithm"] != "ucb":
        return ""
    usual = BanditSettings()
    changed = [f"{k} {v:g}" for k, v in now["bandit"].items() if v != getattr(usual, k, None)]
    return ", ".join(changed) or "default settings"


def _shares(table: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:g}" for name, share in table.items())


def _arms(view: Table) -> str:
    """Return the table of arms, the zombies last."""
    rows = [_row(arm) for arm in view["sources"]]
    rows += [
        [arm["name"], "", "-", "-", "-", "-", f"{arm['pulls']:,}", "-", "-", ZOMBIE]
        for arm in view["zombies"]
    ]
    headers = ["source", "next share", "", "floor", "cap", "so far", "pulls", "epochs", "reward"]
    return render.table([*headers, "standing"], rows, left=(0, 1, 9))


ZOMBIE: Final = "zombie: no source, not pulled, not counted; on record until the next pivot"


def _row(arm: Table) -> list[str]:
    share = arm["probability"]
    return [
        arm["name"],
        render.bounded_bar(share or 0.0, arm["floor"], arm["cap"]),
        render.percent(share),
        render.percent(arm["floor"]) if arm["floor"] else "-",
        render.percent(arm["cap"]) if arm["cap"] < 1 else "-",
        render.percent(arm["share"]),
        f"{arm['pulls']:,}",
        render.number(arm["epochs"], 2),
        render.number(arm["ema_reward"], 3),
        arm["standing"],
    ]


def checked(policy: Policy, base: Policy, sources: tuple[str, ...]) -> Table:
    """Return what `policy` would allow each of `sources`; raise `ConfigError` if it cannot be."""
    feasibility.check(policy, sources)
    before = base.content()
    changed: dict[str, Any] = {
        key: value
        for key, value in policy.content().items()
        if value != before.get(key) and key != "begins_after"
    }
    rows = [
        {"name": name, "floor": policy.floors.get(name, 0.0), "cap": policy.caps.get(name, 1.0)}
        for name in sources
    ]
    return {"feasible": True, "algorithm": policy.algorithm, "changes": changed, "sources": rows}


def checked_text(told: Table) -> str:
    """Return what `checked` gives as lines for a terminal."""
    rows = [
        [
            row["name"],
            render.bounded_bar(0.0, row["floor"], row["cap"]),
            render.percent(row["floor"]),
            render.percent(row["cap"]),
        ]
        for row in told["sources"]
    ]
    sums = [sum(row[key] for row in told["sources"]) for key in ("floor", "cap")]
    rows.append(["sum", "", *(render.percent(value) for value in sums)])
    changes = ", ".join(told["changes"]) or "nothing"
    return (
        f"this can be obeyed ({told['algorithm']}); against the policy in force it changes "
        f"{loose.text(changes)}\n" + render.table(["source", "", "floor", "cap"], rows, left=(0, 1))
    )
