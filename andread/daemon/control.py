"""The daemon's control: signals and request files become the trainer's orders."""

from __future__ import annotations

from andread.daemon.signals import Signals
from andread.duties import Orders, Reporter
from andread.rundir import requests
from andread.rundir.clock import ProcessIdentity
from andread.rundir.errors import from_os_error
from andread.rundir.layout import RunDirectory
from andread.rundir.lock import RunLock


class DaemonControl:
    """See `duties.Control`."""

    def __init__(
        self, run: RunDirectory, lock: RunLock, signals: Signals, reporter: Reporter
    ) -> None:
        self._run = run
        self._lock = lock
        self._signals = signals
        self._reporter = reporter
        self._own = ProcessIdentity.own()
        self._taken: set[str] = set()

    def stopping(self) -> bool:
        """Tell whether the run is to end at the next boundary."""
        return self._signals.stopping()

    def confirm(self) -> None:
        """Make sure that the run's lock is ours and has its name; raise `BusyError` if not."""
        if self._lock.confirm():
            self._reporter.event("fault", what="lock", detail=".lock was removed or replaced")

    def orders(self) -> Orders:
        """Return what SIGUSR1 asked for since the last call.

        A signal with new request files means what they say; one without is a plain request.
        """
        if not self._signals.take_checkpoint_signal():
            return Orders()
        try:
            lawful, void = requests.take(self._run, self._own)
            for request_id, why in void.items():
                self._reporter.event("refused", id=request_id, why=why)
                requests.discard(self._run, request_id)
        except OSError as error:
            self._reporter.alarm("requests", from_os_error(error, "reading requests").message)
            return Orders(checkpoint=True)
        new = tuple(request for request in lawful if request.id not in self._taken)
        self._taken |= {request.id for request in new}
        return Orders(checkpoint=not new, requests=new)
