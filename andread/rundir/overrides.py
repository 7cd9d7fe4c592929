"""What a policy may override in run.toml: the keys of `[optimizer]` that may change in mid-run.

Step k runs under run.toml overlaid with the overrides of the policy that k runs under, in replay
too. The list is closed. What is not in it (the model, the seed, the betas that m and v are
averages under) would make another run of this one: that takes a new run.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from andread.rundir.errors import ConfigError
from andread.rundir.policy import Policy
from andread.rundir.run_toml import check_together
from andread.rundir.settings import OptimizerSettings, Settings
from andread.rundir.tables import nearest, read_table

OVERRIDABLE: Final = (
    "optimizer.lr",
    "optimizer.lr_minimum",
    "optimizer.decay_steps",
    "optimizer.warmup_steps",
    "optimizer.weight_decay",
    "optimizer.clip",
    "optimizer.batch",
)


def settings_under(settings: Settings, policy: Policy) -> Settings:
    """Return `settings` as the steps of `policy` run under them.

    Raises `ConfigError` for an override that is not in the list, of a wrong type or value, or at
    odds with the rest of run.toml (a batch that micro_batch does not divide).
    """
    if not policy.overrides:
        return settings
    for key in policy.overrides:
        if key not in OVERRIDABLE:
            raise ConfigError(
                f"{key} may not change in mid-run{nearest(key, OVERRIDABLE)}",
                f"a pivot may set {', '.join(OVERRIDABLE)}; anything else takes a new run",
            )
    given = {key.removeprefix("optimizer."): value for key, value in policy.overrides.items()}
    table = dataclasses.asdict(settings.optimizer) | given
    optimizer = read_table(OptimizerSettings, table, "optimizer")
    changed = dataclasses.replace(settings, optimizer=optimizer)
    check_together(changed)
    return changed
