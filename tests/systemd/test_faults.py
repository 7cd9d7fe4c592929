"""Faults that meet a service at work or at its end, each as it is in the world.

A stop in the middle of a slow write, a full disk, the out-of-memory killer, a run that diverges, a
step longer than the unit's own limit.
"""

from __future__ import annotations

import os

import pytest

from andread.rundir import companion, errors, presence
from tests.process.harness import count, entries, find, image, last_step
from tests.systemd.guest import Service, order
from tests.systemd.pressure import disk, little_memory

pytestmark = pytest.mark.slow

SOAK = "ANDREAD_TEST_SOAK"


def stays_failed(service: Service, code: int) -> None:
    """Assert that the unit has failed with `code`, and is not started again (RestartSec is 1)."""
    service.until(lambda: service.show("ActiveState") == "failed")
    service.machine.do("sleep", "2.5")
    assert service.states() == ("failed", "failed", "exit-code")
    assert service.show("ExecMainStatus") == str(code)
    assert (service.show("NRestarts"), count(service.run, "started")) == ("0", 1)


def test_a_stop_in_the_middle_of_a_write_waits_for_whole_checkpoints(
    obedient: Service,
) -> None:
    service = obedient
    service.edit("vocabulary = 320", "vocabulary = 820")  # two chunks a checkpoint: 16 MB
    service.edit("checkpoint_every = 50", "checkpoint_every = 5")
    service.configure("[Service]\nTimeoutStopSec=8\n", "patience")
    with disk(service.machine) as slow:
        try:
            service.move_to("/dev/slow")
            run = service.run
            service.systemctl("start")
            service.until_step(3)
            slow.slow(4_000_000)  # longer than ever measured; both writes, longer than 8 seconds
            service.until(lambda: presence.read(run.lock).waiting == "the checkpoint before")
            [path] = run.path.glob("step_*.bin.tmp-*")
            written, last = int(path.name[5:11]), last_step(run)
            service.systemctl("stop", "--no-block")
            service.until(lambda: service.show("ActiveState") == "deactivating")
            assert not run.checkpoint(written).exists(), "it was still being written"
            service.until(lambda: service.show("ActiveState") == "inactive", 120)
            slow.slow(0)
            assert service.states() == ("inactive", "dead", "success")
            assert service.show("ExecMainStatus") == "0"
            assert (written + 5, last_step(run)) == (last, last), "no step more"
            for step in (written, last):
                assert image(run.checkpoint(step))[0] == step
                assert companion.read(run.companion(step)).step == step
            assert max(run.checkpoint_steps()) == last
            assert not list(run.path.glob("*.tmp-*"))
            service.systemctl("start")
            service.until_step(last + 3)
            assert count(run, "replay") == 0, "nothing was lost"
            service.systemctl("stop")
        finally:
            slow.slow(0)
            service.discard()


def test_a_stop_on_a_full_disk_is_a_failure_that_says_so(service: Service) -> None:
    service.edit("checkpoint_every = 50", "checkpoint_every = 100000")
    service.move_to("-t", "tmpfs", "-o", "size=2500k", "tmpfs")
    service.systemctl("start")
    service.until_step(3)
    ballast = f"{service.inside}/ballast"
    assert service.machine.run("dd", "if=/dev/zero", f"of={ballast}").returncode == 1  # full
    assert service.machine.run("systemctl", "stop", service.unit).returncode == 0
    stays_failed(service, errors.LAST_WRITE_FAILED)
    said = service.machine.run("systemctl", "status", service.unit).stdout
    assert f"status={errors.LAST_WRITE_FAILED}" in said
    assert "could not be written; the newest durable one is of step 0" in said
    assert service.run.checkpoint_steps() == [0]
    service.machine.do("rm", ballast)
    service.systemctl("reset-failed")
    service.systemctl("start")
    assert service.until_event("replay")["verdict"] == "exact"
    service.systemctl("stop")
    assert service.states() == ("inactive", "dead", "success")


def test_what_the_out_of_memory_killer_ends_is_started_again_and_resumes(obedient: Service) -> None:
    obedient.edit("checkpoint_every = 50", "checkpoint_every = 40000")  # something to replay
    obedient.systemctl("start")
    obedient.until_step(60)
    pid = obedient.show("MainPID")
    with little_memory(obedient, 100 << 20):
        order(obedient, "eat", 600)
        verdict = obedient.until_event("replay")
    assert verdict["verdict"] == "exact"
    assert obedient.show("NRestarts") == "1"
    assert obedient.show("MainPID") not in (pid, "0")
    told = obedient.machine.journal(obedient.unit)
    assert "oom-kill" in told or "code=killed, status=9/KILL" in told
    assert count(obedient.run, "stopped") == 0, "nobody asked it to"
    obedient.until_step(verdict["to"] + 5)


def test_a_run_that_diverges_fails_once(obedient: Service) -> None:
    obedient.edit("checkpoint_every = 50", "checkpoint_every = 40000")
    obedient.systemctl("start")
    obedient.until_step(60)
    order(obedient, "poison")
    stays_failed(obedient, errors.DIVERGED)
    assert find(obedient.run, "diverged") is not None
    said = obedient.machine.run("systemctl", "status", obedient.unit).stdout
    assert "10 consecutive steps" in said and f"status={errors.DIVERGED}" in said
    skipped = [entry["step"] for entry in entries(obedient.run) if entry.get("skipped")]
    assert len(skipped) == 10
    assert all(step < skipped[0] for step in obedient.run.checkpoint_steps())


@pytest.mark.skipif(
    not os.environ.get(SOAK), reason=f"NOT TESTED: a step of minutes, for {SOAK} is not set"
)
def test_a_step_longer_than_the_limit_of_the_unit_as_shipped(obedient: Service) -> None:
    assert obedient.show("TimeoutStopUSec") == "3min"
    obedient.systemctl("start")
    obedient.until_step(5)
    order(obedient, "sleep", 95)  # longer than systemd's own limit of 90 seconds; measured
    order(obedient, "sleep", 185, 120)  # the step after it: longer than the unit's
    obedient.machine.do("systemctl", "stop", obedient.unit, timeout=300)
    assert obedient.states() == ("inactive", "dead", "success")
    step = last_step(obedient.run)
    assert image(obedient.run.checkpoint(step))[0] == step
    assert companion.read(obedient.run.companion(step)).reasons[-1] == "stop"
