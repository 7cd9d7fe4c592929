"""What the durability tests share, and the line that sums them up."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.durability.disks import own_mounts
from tests.durability.zygote import Zygote, zygote

Tally = Callable[[str, int], None]
FIGURES = (
    *("faults tried", "crash states", "power cuts", "real faults", "mutants caught"),
    *("fuzz cases", "violations"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/durability/" in str(item.path):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Count something for the line at the end."""

    def count(what: str, number: int = 1) -> None:
        assert what in FIGURES
        request.node.user_properties.append((f"durability: {what}", number))

    return count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    sums: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, number in report.user_properties:
                    if str(name).startswith("durability: "):
                        sums[str(name).removeprefix("durability: ")] += int(str(number))
    if sums:
        told = ", ".join(f"{sums[name]:,} {name}" for name in FIGURES)
        terminalreporter.write_line(f"durability: {told}")


@pytest.fixture(scope="session", autouse=True)
def _mounts() -> None:
    own_mounts()


@pytest.fixture(scope="session")
def light() -> Iterator[Zygote]:
    """Forks lives without training."""
    with zygote(torch=False) as made:
        yield made


@pytest.fixture(scope="session")
def daemons() -> Iterator[Zygote]:
    """Forks real daemons, with torch warm."""
    with zygote(torch=True) as made:
        yield made


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, gone afterwards."""
    place = Path(tempfile.mkdtemp(prefix="andread-durability-", dir="/dev/shm"))
    yield place
    shutil.rmtree(place, ignore_errors=True)
