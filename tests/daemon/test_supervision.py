import os
import sys

import pytest

from andread.daemon.supervision import service_of, supervisor


@pytest.mark.parametrize(
    ("cgroups", "expected"),
    [
        ("0::/system.slice/andread.service\n", ("andread.service", "system")),
        (
            "9:name=systemd:/\n0::/system.slice/system-andread.slice/andread@web.service\n",
            ("andread@web.service", "system"),
        ),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/andread@a:b.service\n",
            ("andread@a:b.service", "user"),
        ),
        ("1:name=systemd:/system.slice/andread.service\n0::/\n", ("andread.service", "system")),
        ("0::/user.slice/user-1000.slice/session-2.scope\n", ("", "")),
        ("0::/user.slice/user-1000.slice/user@1000.service\n", ("", "")),
        ("", ("", "")),
    ],
)
def test_the_service_is_read_from_the_cgroup(cgroups: str, expected: tuple[str, str]) -> None:
    assert service_of(cgroups) == expected


def test_whoever_started_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYSTEMD_EXEC_PID", raising=False)
    monkeypatch.delenv("ANDREAD_SUPERVISOR", raising=False)
    assert supervisor() == {"kind": "foreground"}
    monkeypatch.setenv("ANDREAD_SUPERVISOR", "detached")
    assert supervisor() == {"kind": "detached", "arguments": sys.orig_argv}
    monkeypatch.delenv("ANDREAD_SUPERVISOR")
    monkeypatch.setenv("SYSTEMD_EXEC_PID", str(os.getppid()))  # a child of a service
    assert supervisor() == {"kind": "foreground"}
