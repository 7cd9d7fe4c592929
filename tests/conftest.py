"""What holds for every test; and the line that sums up what tests/durability tried, at the end."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

FIGURES = (
    *("faults tried", "crash states", "power cuts", "real faults", "mutants caught"),
    *("fuzz cases", "violations"),
)
PROPERTY = "durability: "
"""What the names of the figures begin with in a report."""

_sums: Counter[str] = Counter()


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as behind a shell's `&`: inherited
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        for name, number in report.user_properties:
            if str(name).startswith(PROPERTY):
                _sums[str(name).removeprefix(PROPERTY)] += int(str(number))


def pytest_unconfigure(config: pytest.Config) -> None:
    if _sums and not hasattr(config, "workerinput"):
        told = ", ".join(f"{_sums[name]:,} {name}" for name in FIGURES)
        print(f"{PROPERTY}{told}")
