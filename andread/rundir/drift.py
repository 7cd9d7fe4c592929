"""What a run is may not drift: what shaped its trajectory so far must be what is there now.

Compared are run.toml alone and the tokens: what a policy overrides is recorded as policy.
"""

from __future__ import annotations

from collections.abc import Mapping

from andread.rundir.companion import Companion
from andread.rundir.errors import ConfigError, DataError
from andread.rundir.settings import Settings


def refuse_drift(settings: Settings, data: Mapping[str, str], past: Companion) -> None:
    """Refuse to go on with keys or tokens that shape the trajectory and have changed.

    `data` is the fingerprint of each source's tokens. Raises `ConfigError` or `DataError`.
    """
    now = settings.trajectory()
    changed = [
        f"{key}: {past.trajectory.get(key)!r} became {now.get(key)!r}"
        for key in sorted(past.trajectory.keys() | now.keys())
        if past.trajectory and past.trajectory.get(key) != now.get(key)
    ]
    if changed:
        raise ConfigError(
            f"run.toml is not what step {past.step} was trained with: {'; '.join(changed)}",
            "undo the change, or make it lawfully: by a pivot (andrectl pivot --set key=value) "
            "where it may change in mid-run, else in a fork (andrectl fork --set key=value)",
        )
    other = [name for name in data if past.data.get(name, data[name]) != data[name]]
    if other:
        raise DataError(
            f"the tokens of {', '.join(other)} are not those that step {past.step} was trained on",
            "restore the run's data folder; new text comes in under a new source name",
        )
