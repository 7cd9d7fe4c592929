"""andread in the machine: its units, and a run as the service that trains it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from andread.rundir.layout import RunDirectory
from tests.process.harness import find, last_step
from tests.systemd.machine import TREE, Machine

STATE = "/var/lib/andread"
_QUICK = "[Service]\nRestartSec=1\n"


def make(machine: Machine, target: str) -> None:
    """Run a target of the Makefile onto the machine's disk."""
    subprocess.run(
        ["make", "-s", target, f"DESTDIR={machine.disk}/upper", f"PAGES_WITH={sys.executable}"],
        cwd=TREE,
        check=True,
        capture_output=True,
        text=True,
    )


class Service:
    """`andread@NAME.service`. The host reads its run straight from the machine's disk."""

    def __init__(self, machine: Machine, template: RunDirectory, name: str) -> None:
        self.machine = machine
        self.name, self.unit = name, f"andread@{name}.service"
        self.inside = f"{STATE}/{name}"
        self.run = RunDirectory(machine.host(self.inside))
        # Made in the machine: what the host adds behind an overlay's back it may not see.
        machine.do("mkdir", self.inside)
        archive = shutil.make_archive(str(machine.disk / name), "tar", template.path)
        with open(archive, "rb") as stream:  # noqa: PTH123 - handed to a process
            machine.feed(stream, "tar", "-x", "-C", self.inside)
        machine.do("chown", "-R", "andread:andread", self.inside)
        machine.do("chmod", "750", self.inside)
        self.configure(_QUICK)

    def move_to(self, *mount: str) -> None:
        """Put the run on a file system of its own; `mount` is what mount(8) is told of it."""
        do = self.machine.do
        do("cp", "-a", self.inside, f"{self.inside}.moved")
        do("mount", *mount, self.inside)
        do("sh", "-c", f"cp -a {self.inside}.moved/. {self.inside} && rm -r {self.inside}.moved")
        self.run = RunDirectory(Path(f"/proc/{self.machine.pid}/root{self.inside}"))

    def rename_unit(self, unit: str) -> None:
        """Be another of the units that train this run."""
        self.unit = unit
        self.configure(_QUICK)

    def configure(self, text: str, name: str = "test") -> None:
        """Add a drop-in to the unit."""
        self.write(f"/etc/systemd/system/{self.unit}.d/{name}.conf", text)
        self.machine.do("systemctl", "daemon-reload")

    def write(self, path: str, text: str) -> None:
        """Write a file in the machine."""
        self.machine.do("sh", "-c", f'mkdir -p "$(dirname {path})"; cat > {path}', stdin=text)

    def edit(self, before: str, after: str) -> None:
        """Change run.toml."""
        text = self.run.settings.read_text()
        assert before in text
        self.write(f"{self.inside}/run.toml", text.replace(before, after))

    def systemctl(self, verb: str, *options: str) -> str:
        return self.machine.do("systemctl", verb, *options, self.unit)

    def andrectl(self, *arguments: str, **options: Any) -> Any:
        """Run andrectl in the machine; return what became of it."""
        return self.machine.run("andrectl", "--run", self.inside, *arguments, **options)

    def show(self, name: str) -> str:
        return self.machine.show(self.unit, name)

    def states(self) -> tuple[str, str, str]:
        return self.show("ActiveState"), self.show("SubState"), self.show("Result")

    def until(self, condition: Callable[[], Any], timeout: float = 60) -> Any:
        return self.machine.until(condition, timeout)

    def until_step(self, step: int) -> None:
        self.until(lambda: last_step(self.run) >= step)

    def until_event(self, kind: str, **fields: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.until(lambda: find(self.run, kind, **fields))
        return found

    def discard(self) -> None:
        """Stop it, whatever it does, and forget it."""
        self.machine.run("systemctl", "kill", "-s", "KILL", self.unit)
        self.machine.run("systemctl", "stop", self.unit)
        self.machine.run("systemctl", "reset-failed", self.unit)
        self.machine.run("umount", self.inside)
        self.machine.run("rm", "-rf", self.inside, f"/etc/systemd/system/{self.unit}.d")


def make_obedient(service: Service) -> None:
    """Give the run the model that does what it is told: see `order`."""
    service.write("/opt/models/obedient.py", Path(__file__).with_name("obedient.py").read_text())
    service.edit("width = 32\nheads = 2\nlayers = 2", 'factory = "obedient:make"')
    environment = f"PYTHONPATH=/opt/models ANDREAD_TEST_ORDERS={service.inside}/orders"
    service.configure(f"[Service]\nEnvironment={environment}\n", "model")
    service.machine.do("install", "-d", "-o", "andread", f"{service.inside}/orders")


def order(service: Service, word: str, number: int = 0, timeout: float = 60) -> None:
    """Have the next step do something, and wait until it does."""
    path = f"{service.inside}/orders/{word}-{number}"
    service.machine.do("touch", path)
    service.until(lambda: service.machine.run("test", "-e", path).returncode != 0, timeout)
