"""Processes that are born in milliseconds: a warm interpreter that forks them.

python -m tests.durability.zygote [torch]  reads orders, one JSON object a line, and answers each.

What it forks is the real thing: with `daemon` the whole of `andread.daemon.main`, in a process of
its own, with torch already imported; with `writer` a life without training.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_PDEATHSIG = 1
_FOREVER = contextlib.ExitStack()
"""What a child has in force until its end."""


class Process:
    """A process that a zygote has forked; speaks as a `Popen` does."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self._zygote = zygote
        self.pid = pid
        self.returncode: int | None = None
        self.memory = 0
        """Bytes that it took at most, once it has ended, beyond what it was born with."""

    def wait(self, timeout: float = 60) -> int:
        """Wait for its end; return its exit code, negative for a signal."""
        code = self._ended(timeout)
        assert code is not None, f"process {self.pid} does not end"
        return code

    def poll(self) -> int | None:
        """Return its exit code if it has ended."""
        return self._ended(0)

    def _ended(self, timeout: float) -> int | None:
        if self.returncode is None:
            answer = self._zygote.order(do="wait", pid=self.pid, timeout=timeout)
            self.returncode, self.memory = answer["code"], answer["memory"]
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal; until it has been waited for, its pid is its own."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Zygote:
    """One warm interpreter."""

    def __init__(self, torch: bool) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.durability.zygote", *(["torch"] if torch else [])],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.order(do="hello")

    def order(self, **order: Any) -> Any:
        """Give an order and return the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the zygote died of {order}"
        return json.loads(answer)

    def start(self, what: str, *arguments: object, output: Path, **options: Any) -> Process:
        """Fork a `daemon`, a `writer`, a `neighbour` or `readers`; what it says goes to `output`.

        Options: `fault`, the fields of a `layer.Fault`; `file_size`, its RLIMIT_FSIZE.
        """
        order = {"do": "start", "what": what, "arguments": list(map(str, arguments))}
        return Process(self, self.order(**order, output=str(output), **options)["pid"])

    def close(self) -> None:
        """End it, and with it all that it has forked."""
        with contextlib.suppress(OSError):
            self._process.communicate(timeout=20)


@contextlib.contextmanager
def zygote(torch: bool) -> Iterator[Zygote]:
    """Have a zygote for a while."""
    made = Zygote(torch)
    try:
        yield made
    finally:
        made.close()


def _warm() -> None:
    """Import what a daemon imports, and what torch imports behind its back at first use."""
    import torch

    import andread.daemon.startup  # noqa: F401 - warm

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def _become(order: dict[str, Any]) -> None:
    """Be the process that is asked for; in the child, never returns."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDWR)
    for target, source in ((0, null), (1, output), (2, output)):
        os.dup2(source, target)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - for as long as the process lives
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if "file_size" in order:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_size"],) * 2)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _main(order)()
    os._exit(0)


def _main(order: dict[str, Any]) -> Callable[[], Any]:
    if fault := order.get("fault"):
        from tests.durability.layer import Fault, Faulty, replaced

        faulty = Faulty(Fault(**fault), lambda where: os.write(2, where))
        _FOREVER.enter_context(replaced(faulty.make))
    if order["what"] == "daemon":
        from andread.daemon import main

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        sys.argv = ["andread", *order["arguments"]]
        return main.main
    from tests.durability import readers, writer

    room = readers if order["what"] == "readers" else writer
    return lambda: getattr(room, order["what"])(*order["arguments"])


def _serve() -> None:
    ended: dict[int, tuple[int, int]] = {}
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {}
        if order["do"] == "start":
            if (pid := os.fork()) == 0:
                try:
                    _become(order)
                finally:
                    os._exit(99)
            ended.pop(pid, None)  # pids come round
            answer["pid"] = pid
        elif order["do"] == "wait":
            answer["code"], answer["memory"] = _ended(ended, order["pid"], order["timeout"])
        print(json.dumps(answer), flush=True)


def _ended(ended: dict[int, tuple[int, int]], pid: int, timeout: float) -> tuple[int | None, int]:
    born_with = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    deadline = time.monotonic() + timeout
    while pid not in ended:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            memory = max(0, usage.ru_maxrss - born_with) << 10
            ended[pid] = os.waitstatus_to_exitcode(status), memory
        elif time.monotonic() >= deadline:
            return None, 0
        else:
            time.sleep(0.002)
    return ended[pid]


if __name__ == "__main__":
    if "torch" in sys.argv[1:]:
        _warm()
    else:
        from tests.durability import readers, writer  # noqa: F401 - warm

    _serve()
