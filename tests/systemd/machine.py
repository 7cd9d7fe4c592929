"""A machine of our own: a real systemd as PID 1 of fresh namespaces, its disk an overlay over `/`.

Nothing outside is touched: the overlay takes every write, /tmp, /run and /dev are the machine's
own, sysfs and /proc/sys are read-only, the network is empty. What the machine sees at fixed places:

    /opt/python     the interpreter that runs the tests
    /opt/packages   its site-packages
    /opt/tree       this source tree
    /opt/andread    a virtual environment made of the three, as `make install` would make one

The disk is a directory of the host's, so it outlives a power cut, which is SIGKILL to PID 1.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

TREE = Path(__file__).parents[2]
SYSTEMD = Path("/lib/systemd/systemd")
_PATH = "PATH=/opt/andread/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NAMESPACES = ("pid", "mount", "cgroup", "uts", "ipc", "net")

_BOOT = r"""
set -e
echo $$ > "$CGROUP/cgroup.procs"
exec setpriv --pdeathsig KILL unshare --pid --mount --cgroup --uts --ipc --net \
  --fork --kill-child --propagation private sh -e -c '
    mount -t overlay machine -o "lowerdir=/,upperdir=$DISK/upper,workdir=$DISK/work" "$DISK/root"
    cd "$DISK/root"
    for pair in $BINDS; do
      mkdir -p ".${pair#*:}"
      mount --bind "${pair%%:*}" ".${pair#*:}"
      mount -o remount,bind,ro ".${pair#*:}"
    done
    mount -t proc proc proc
    mount --bind proc/sys proc/sys
    mount -o remount,bind,ro proc/sys
    mount -t sysfs -o ro sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount -t tmpfs -o mode=755 tmpfs run
    mount -t tmpfs -o mode=1777 tmpfs tmp
    mount -t tmpfs -o mode=755 tmpfs dev
    for name in null zero full random urandom tty; do
      touch dev/$name
      mount --bind /dev/$name dev/$name
    done
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
    mkdir run/host
    pivot_root . run/host
    cd /
    umount -l /run/host
    hostname machine
    exec env -i container=machine /lib/systemd/systemd --system --unit=multi-user.target
  '
"""


def why_not() -> str:
    """Return why this host cannot boot the machine, an empty string if it can."""
    if os.geteuid() != 0:
        return "it needs root"
    if not SYSTEMD.exists():
        return f"there is no {SYSTEMD}"
    for tool in ("unshare", "nsenter", "setpriv", "systemctl", "systemd-sysusers"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    if _unified() is None:
        return "there is no unified cgroup hierarchy"
    probe = ["unshare", *(f"--{name}" for name in _NAMESPACES), "--fork", "true"]
    done = subprocess.run(probe, capture_output=True, text=True)
    return f"namespaces are refused: {done.stderr.strip()}" if done.returncode else ""


def _unified() -> Path | None:
    for path in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
        if (path / "cgroup.procs").exists() and (path / "cgroup.controllers").exists():
            return path
    return None


class Machine:
    """One machine; `boot` it, `cut` its power, boot it again."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk
        unified = _unified()
        assert unified is not None, "asked by `why_not`"
        self._cgroup = unified / f"andread-test-{os.getpid()}-{disk.name}"
        self._launcher: subprocess.Popen[bytes] | None = None
        self.pid = 0
        for name in ("upper", "work", "root"):
            (disk / name).mkdir(parents=True)
        disk.chmod(0o755)
        self._furnish()

    def _furnish(self) -> None:
        """Put the virtual environment on the disk, and leave the host's own services out."""
        environment = self.host("/opt/andread")
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = environment / f"lib/{version}/site-packages"
        packages.mkdir(parents=True)
        (packages / "tree.pth").write_text("/opt/tree\n/opt/packages\n")
        (environment / "pyvenv.cfg").write_text("home = /opt/python/bin\n")
        (environment / "bin").mkdir()
        for name in ("python", "python3"):
            (environment / "bin" / name).symlink_to(f"/opt/python/bin/{version}")
        for name, module in (("andread", "andread.daemon.main"), ("andrectl", "andrectl.cli")):
            script = environment / "bin" / name
            script.write_text(f"#!/opt/andread/bin/python3\nfrom {module} import main\nmain()\n")
            script.chmod(0o755)
        units = self.host("/etc/systemd/system")
        units.mkdir(parents=True)
        wants = Path("/etc/systemd/system/multi-user.target.wants")
        own = [path.name for path in wants.iterdir()] if wants.is_dir() else []
        modules = ("systemd-modules-load.service", "systemd-remount-fs.service")
        for name in ("getty.target", *modules, *own):
            (units / name).symlink_to("/dev/null")

    def host(self, path: str) -> Path:
        """Return where the host finds what the machine writes to `path`."""
        return self.disk / "upper" / path.lstrip("/")

    def boot(self) -> None:
        """Boot, and wait until systemd has done so."""
        self._cgroup.mkdir()
        packages = Path(sysconfig.get_path("purelib"))
        binds = {Path(sys.base_prefix): "python", packages: "packages", TREE: "tree"}
        environment = {
            **os.environ,
            "CGROUP": str(self._cgroup),
            "DISK": str(self.disk),
            "BINDS": " ".join(f"{path}:/opt/{name}" for path, name in binds.items()),
        }
        with (self.disk / "console").open("ab") as console:
            self._launcher = subprocess.Popen(
                ["sh", "-c", _BOOT],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        self.until(self._child, 10)
        self.until(
            lambda: (
                self.run("systemctl", "is-system-running", "--wait").stdout.strip()
                in ("running", "degraded")
            ),
            60,
        )

    def _child(self) -> int:
        launcher = self._launcher
        assert launcher is not None
        if launcher.poll() is not None:
            raise AssertionError(f"no machine:\n{(self.disk / 'console').read_text()}")
        with contextlib.suppress(FileNotFoundError, ValueError):
            path = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
            self.pid = int(path.read_text().split()[0]) if path.read_text().split() else 0
            if self.pid and Path(f"/proc/{self.pid}/comm").read_text().strip() == "systemd":
                return self.pid
        return 0

    def cut(self) -> None:
        """Cut the power: every process ends at once, the disk stays as it is."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.pid = 0
        if self._launcher is not None:
            with contextlib.suppress(ProcessLookupError):
                self._launcher.kill()
            self._launcher.wait()
            self._launcher = None
        if self._cgroup.exists():
            self.until(self._swept, 10)

    def _swept(self) -> bool:
        """Remove the cgroups; the last processes in them take a moment to go."""
        for path, _, _ in os.walk(self._cgroup, topdown=False):
            with contextlib.suppress(OSError):
                Path(path).rmdir()
        return not self._cgroup.exists()

    def _enter(self, command: tuple[str, ...], user: str) -> list[str]:
        become = ["runuser", "-u", user, "--"] if user else []
        enter = ["nsenter", "-t", str(self.pid), "-p", "-m", "-C", "-u", "-i", "-n"]
        return [*enter, "--", "env", "-i", _PATH, "LC_ALL=C.UTF-8", *become, *command]

    def run(
        self, *command: str, user: str = "", timeout: float = 120, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine, as root or as `user`."""
        return subprocess.run(
            self._enter(command, user),
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd="/",
            input=stdin,
        )

    def feed(self, stream: BinaryIO, *command: str) -> None:
        """Run a command in the machine that reads `stream`."""
        subprocess.run(self._enter(command, ""), stdin=stream, cwd="/", check=True, timeout=60)

    def do(self, *command: str, **options: Any) -> str:
        """Run a command that must succeed; return what it printed."""
        done = self.run(*command, **options)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.do("systemctl", "show", "--value", "-p", name, unit).strip()

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "-o", "short-monotonic", "-u", unit).stdout

    def until(self, condition: Callable[[], Any], timeout: float = 60) -> Any:
        """Wait for `condition` to hold; return what it gave."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if found := condition():
                return found
            time.sleep(0.05)
        told = self.run("journalctl", "--no-pager", "-n", "60").stdout if self.pid else ""
        raise AssertionError(f"timed out:\n{told}")
