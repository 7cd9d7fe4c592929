"""The service under a real systemd, from its start to its end, well or not."""

from __future__ import annotations

import orjson
import pytest

from andread.rundir import companion
from tests.process.harness import count, entries, image, last_step
from tests.systemd.guest import Service

pytestmark = pytest.mark.slow


def test_start_is_ready_when_it_trains_and_stop_ends_clean(service: Service) -> None:
    service.systemctl("start")
    assert service.show("ActiveState") == "active"
    assert service.until_event("started")["step"] == 0, "READY came after it could train"
    service.until_step(60)
    assert service.until(lambda: "of 100000, loss" in service.show("StatusText"))
    told = service.show("StatusText")
    service.until(lambda: service.show("StatusText") != told)
    owner = service.machine.do("stat", "-c", "%U:%G %a", f"{service.inside}/.loss.json")
    assert owner.strip() == "andread:andread 640"

    service.systemctl("stop")
    assert service.states() == ("inactive", "dead", "success")
    assert service.show("ExecMainStatus") == "0"
    step = last_step(service.run)
    assert image(service.run.checkpoint(step))[0] == step
    assert companion.read(service.run.companion(step)).reasons[0] in ("stop", "cadence")

    said = service.machine.do(
        "journalctl", "-o", "json", f"ANDREAD_RUN={service.name}", "ANDREAD_EVENT=checkpoint"
    )
    records = [orjson.loads(line) for line in said.splitlines()]
    assert records[-1]["ANDREAD_STEP"] == str(step)
    assert records[-1]["SYSLOG_IDENTIFIER"] == "andread"


def test_usr1_makes_a_checkpoint_and_training_goes_on(service: Service) -> None:
    service.systemctl("start")
    service.until_step(5)
    service.systemctl("kill", "-s", "USR1")
    step = service.until_event("checkpoint", reasons=["signal"])["step"]
    service.until_step(step + 5)
    done = service.andrectl("snapshot", "--json")
    assert done.returncode == 0, done.stderr
    step = orjson.loads(done.stdout)["step"]
    assert service.run.pin(step).exists()
    service.until_step(step + 5)
    assert service.show("NRestarts") == "0"


def test_a_killed_daemon_is_started_again_and_its_replay_is_exact(service: Service) -> None:
    service.edit("checkpoint_every = 50", "checkpoint_every = 40000")  # something to replay
    service.systemctl("start")
    service.until_step(60)
    service.systemctl("kill", "-s", "KILL", "--kill-whom=main")
    verdict = service.until_event("replay")
    assert (verdict["verdict"], verdict["from"]) == ("exact", 1)
    assert service.show("NRestarts") == "1"
    assert count(service.run, "started") == 2
    service.systemctl("stop")
    steps = [entry["step"] for entry in entries(service.run)]
    assert steps == list(range(1, len(steps) + 1))


def test_a_finished_run_started_again_is_a_success(service: Service) -> None:
    service.edit("steps = 100000", "steps = 20")
    service.systemctl("start")
    service.until(lambda: service.show("ActiveState") == "inactive")
    service.systemctl("start")
    service.until(lambda: service.show("ActiveState") == "inactive")
    assert service.states() == ("inactive", "dead", "success")
    assert (service.show("NRestarts"), count(service.run, "started")) == ("0", 2)


def begun(service: Service) -> bool:
    """Tell whether the interpreter is loaded, from when on signals are blocked until handled."""
    pid = service.show("MainPID")
    return service.machine.run("cat", f"/proc/{pid}/comm").stdout.strip() == "andread"


def test_a_stop_in_the_first_seconds_is_a_success(service: Service) -> None:
    for delay in ("0", "0.5", "2"):
        service.systemctl("start", "--no-block")
        service.until(lambda: begun(service))
        service.machine.do("sleep", delay)
        for name in ("USR1", "TERM"):
            service.machine.run("systemctl", "kill", "-s", name, "--kill-whom=main", service.unit)
        service.until(lambda: service.show("ActiveState") == "inactive")
        assert service.states() == ("inactive", "dead", "success"), delay
    assert service.show("NRestarts") == "0"


def test_usr1_in_the_first_milliseconds_is_served_at_the_first_boundary(service: Service) -> None:
    service.systemctl("start", "--no-block")
    service.until(lambda: begun(service))
    service.systemctl("kill", "-s", "USR1", "--kill-whom=main")
    first = service.until_event("checkpoint", step=0)
    assert first["reasons"] == ["start", "signal"]
    service.until_step(3)
    assert service.show("NRestarts") == "0"


def test_usr1_before_anything_of_ours_runs_leads_to_its_checkpoint_too(service: Service) -> None:
    """While systemd still builds the sandbox nobody can block a signal: it may end the process."""
    hurry = f"until systemctl kill -s USR1 --kill-whom=main {service.unit} 2>/dev/null; do :; done"
    service.machine.do("sh", "-c", f"systemctl start --no-block {service.unit}; {hurry}")
    first = service.until_event("checkpoint", step=0)
    assert first["reasons"][0] == "start"
    service.until_step(3)
    assert service.states() == ("active", "running", "success")
    assert int(service.show("NRestarts")) <= 1


def test_what_no_restart_mends_fails_once_and_says_why(service: Service) -> None:
    service.edit("batch = 8", "bach = 8")
    assert service.machine.run("systemctl", "start", service.unit).returncode != 0
    assert service.states() == ("failed", "failed", "exit-code")
    assert service.show("ExecMainStatus") == "78"
    assert "bach" in service.machine.run("systemctl", "status", service.unit).stdout
    service.machine.do("sleep", "2")
    assert (service.show("ActiveState"), service.show("NRestarts")) == ("failed", "0")
    service.edit("bach = 8", "batch = 8")
    service.machine.do("sh", "-c", f"rm {service.inside}/data/topics.train.bin")
    assert service.machine.run("systemctl", "start", service.unit).returncode != 0
    assert service.show("ExecMainStatus") == "66"


def test_another_user_can_neither_signal_nor_read(service: Service) -> None:
    machine = service.machine
    machine.do("useradd", "--system", "stranger")
    machine.do("useradd", "--system", "-G", "andread", "friend")
    service.systemctl("start")
    service.until_step(2)
    assert service.show("User") == "andread"
    pid = service.show("MainPID")
    assert machine.run("kill", "-s", "TERM", pid, user="stranger").returncode != 0
    weights = f"{service.inside}/step_000000.bin"
    assert machine.run("cat", weights, user="stranger").returncode != 0
    assert service.andrectl("status", user="stranger").returncode == 4
    assert machine.run("kill", "-s", "TERM", pid, user="friend").returncode != 0
    done = service.andrectl("status", "--json", user="friend")
    assert done.returncode == 0, done.stderr
    assert orjson.loads(done.stdout)["state"] == "running"
