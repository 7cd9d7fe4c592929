"""The service in trouble: hung, stopped in a long step, without power, pivoted, stopped in a hurry.

What a run does of itself only by accident, the model `obedient` does when it is told.
"""

from __future__ import annotations

import orjson
import pytest

from andread.rundir import companion, presence
from andread.rundir.layout import RunDirectory
from tests.process.harness import count, entries, find, image, last_step
from tests.systemd.guest import Service, order

pytestmark = pytest.mark.slow


def test_a_hung_loop_is_ended_by_the_watchdog_and_resumes(obedient: Service) -> None:
    obedient.configure("[Service]\nWatchdogSec=5\n", "watchdog")
    obedient.edit("checkpoint_every = 50", "checkpoint_every = 40000")  # something to replay
    obedient.systemctl("start")
    obedient.until_step(60)
    order(obedient, "sleep", 600)
    verdict = obedient.until_event("replay")
    assert verdict["verdict"] == "exact"
    assert obedient.show("NRestarts") == "1"
    said = obedient.machine.journal(obedient.unit)
    assert "Watchdog timeout" in said
    assert "obedient.py" in said and "in forward" in said, "where it hung"
    obedient.until_step(verdict["to"] + 5)


def test_a_stop_in_one_long_call_gets_the_time_it_needs(obedient: Service) -> None:
    obedient.configure("[Service]\nTimeoutStopSec=4\n", "patience")
    obedient.systemctl("start")
    obedient.until_step(10)
    order(obedient, "sleep", 5)  # measured: a stop may take twice that and more
    order(obedient, "sleep", 7)  # the step after it: longer than TimeoutStopSec
    obedient.systemctl("stop")
    assert obedient.states() == ("inactive", "dead", "success")
    step = last_step(obedient.run)
    assert image(obedient.run.checkpoint(step))[0] == step
    assert companion.read(obedient.run.companion(step)).reasons[-1] == "stop"


def test_a_stop_while_it_loads_or_audits_is_obeyed_soon(service: Service) -> None:
    service.systemctl("start", "--no-block")
    service.until(lambda: presence.read(service.run.lock).phase == "starting")  # torch comes next
    service.systemctl("stop")
    assert service.states() == ("inactive", "dead", "success")
    assert service.run.checkpoint_steps() == []
    prompts = ["The"] * 20_000  # an audit of a minute
    service.edit("validation_windows = 4", f"validation_windows = 4\nprompts = {prompts}")
    service.systemctl("start")
    service.until(lambda: presence.read(service.run.lock).phase == "auditing")
    service.systemctl("stop")
    assert service.states() == ("inactive", "dead", "success")
    assert last_step(service.run) == 50 and find(service.run, "audit") is None


def test_two_stops_at_once(service: Service) -> None:
    service.systemctl("start")
    service.until_step(3)
    service.systemctl("stop", "--no-block")
    service.systemctl("stop")
    assert service.states() == ("inactive", "dead", "success")
    assert count(service.run, "stopped") == 1


def test_andrectl_acts_through_the_unit(service: Service) -> None:
    done = service.andrectl("start", "--json")
    assert done.returncode == 0, done.stderr
    assert (service.show("ActiveState"), service.show("User")) == ("active", "andread")
    view = orjson.loads(service.andrectl("status", "--json").stdout)
    assert view["supervisor"] == {"kind": "systemd", "unit": service.unit, "manager": "system"}
    assert (view["service"]["active"], view["service"]["restarts"]) == ("active", 0)
    assert f"{service.unit}, active (running)" in service.andrectl("status").stdout
    service.until_step(5)

    done = service.andrectl("pivot", "--caps", "topics=0.4", "--at", "step", "--json")
    assert done.returncode == 0, done.stderr
    proof = orjson.loads(done.stdout)["proof"]
    assert proof["problems"] == [] and proof["pulls"] == 0
    assert service.show("ActiveState") == "active"
    assert service.show("MainPID") == str(find(service.run, "started")["pid"])  # type: ignore[index]

    done = service.andrectl("stop")
    assert done.returncode == 0, done.stderr
    assert service.states() == ("inactive", "dead", "success")
    owners = service.machine.do("find", service.inside, "!", "-user", "andread")
    assert owners == "", "no file became root's"
    steps = [entry["step"] for entry in entries(service.run)]
    assert steps == list(range(1, len(steps) + 1))


def test_after_a_power_cut_the_enabled_unit_resumes(service: Service) -> None:
    run: RunDirectory = service.run
    service.edit("checkpoint_every = 50", "checkpoint_every = 40000")  # something to replay
    service.systemctl("enable")
    service.systemctl("start")
    service.until_step(60)
    service.machine.cut()
    started = count(run, "started")
    service.machine.boot()
    service.until(lambda: count(run, "started") == started + 1)
    assert service.until_event("replay")["verdict"] == "exact"
    assert service.show("ActiveState") == "active"
    service.systemctl("disable")
