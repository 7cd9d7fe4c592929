"""From a run directory to a trainer that is ready for its next step.

Under the lock, in this order: sweep what a dead writer left, read policies and tokens, refuse a
drift from the run's past, build the engine, read the newest valid checkpoint into it, set aside
what was rejected, take the history up, restore the curriculum, answer what was left unanswered.
"""

from __future__ import annotations

from typing import Any

from andread.audit import Auditor
from andread.checkpoints import Checkpointer, acknowledge
from andread.curriculum.batches import Curriculum
from andread.curriculum.tokenizer import Tokenizer
from andread.curriculum.tokens import open_source
from andread.daemon.control import DaemonControl
from andread.daemon.report import DaemonReporter
from andread.daemon.service import Options
from andread.daemon.signals import Signals
from andread.engine import environment
from andread.engine.flat import FlatEngine
from andread.rundir import (
    commit,
    companion,
    events,
    feasibility,
    files,
    recovery,
    requests,
    samples,
)
from andread.rundir.clock import ProcessIdentity
from andread.rundir.companion import Companion
from andread.rundir.drift import refuse_drift
from andread.rundir.early import EarlyRead
from andread.rundir.errors import DataError, MissingError, from_os_error
from andread.rundir.history import LossHistory
from andread.rundir.layout import REJECTED_SUFFIX, RunDirectory
from andread.rundir.lock import RunLock
from andread.rundir.overrides import settings_under
from andread.rundir.policy import FIRST, Policy, policy_at, read_policies, write_policies
from andread.rundir.recovery import Recovered
from andread.rundir.settings import Settings
from andread.trainer import Trainer
from andread.watch import LossWatch


def assemble(
    run: RunDirectory,
    settings: Settings,
    options: Options,
    lock: RunLock,
    signals: Signals,
    reporter: DaemonReporter,
    early: EarlyRead,
) -> Trainer | None:
    """Return the trainer of `run`; None if a stop was asked for meanwhile: nothing is written."""
    reporter.phase("loading")
    if swept := commit.sweep(run):
        reporter.event("swept", names=swept)
    past = recovery.newest_companion(run)
    policies = _policies(run, begun=past is not None)
    sources = [open_source(run, name, settings.model.context) for name in settings.source_names()]
    data = {source.name: source.fingerprint for source in sources}
    if past is not None:
        refuse_drift(settings, data, past)
    else:  # later a source may go that the policy names, now that is a mistake
        feasibility.check(policy_at(policies, 1), settings.source_names())
    recorded = past.environment if past is not None else {}
    device = environment.resolve_device(
        settings.engine.device, recorded.get("device", ""), options.device
    )
    threads = environment.configure(settings.engine, int(recorded.get("threads", 0)))
    engine = FlatEngine(settings, device, threads, early)
    if signals.stopping():
        return None
    recovered = recovery.newest_valid(run, engine.n_params, engine.load, options.accept_history)
    history = _history(run, recovered, reporter)
    last = recovered.companion if recovered else None
    step = last.step if last else 0
    curriculum = Curriculum(
        sources,
        policies,
        settings.run.draw_seed,
        lambda policy: settings_under(settings, policy).optimizer.batch,
        settings.model.context,
        step,
        last.curriculum if last else None,
    )
    _tell_arms(curriculum, reporter)
    same_environment = _tell_environment(last, engine.environment, reporter)
    watch = LossWatch(settings.faults, last.counters if last else {})
    checkpointer = Checkpointer(
        run, settings, engine, curriculum, history, watch, reporter, data, last
    )
    _answer_what_is_left(run, reporter)
    if not engine.can_generate:
        reporter.event("no_samples", why="the model has no logits(tokens, cache) and new_cache()")
    tokenizer = Tokenizer.load(run.tokenizer, settings.tokenizer.separator)
    trainer = Trainer(
        run,
        settings,
        engine,
        curriculum,
        history,
        checkpointer,
        Auditor(engine, sources, tokenizer, settings, signals.stopping, reporter.beat),
        watch,
        _audits(run, curriculum.policy.id, reporter),
        DaemonControl(run, lock, signals, reporter),
        reporter,
        same_environment,
    )
    if signals.stopping():
        return None
    if step < settings.run.steps:  # proves data and model, before READY
        engine.evaluate(curriculum.draw(step + 1).windows[:1])
    if last is not None:  # sources or policy may be others than when it was last written
        checkpointer.view(step)
    reporter.tell(step=step, steps=settings.run.steps, device=str(device))
    own = ProcessIdentity.own()
    reporter.event(
        "started",
        pid=own.pid,
        seconds=round(own.age, 3),
        step=step,
        steps=settings.run.steps,
        device=str(device),
        precision=engine.environment["precision"],
        n_params=engine.n_params,
        checkpoint=run.checkpoint(step).name if last else None,
        sha256=last.sha256 if last else None,
        policy=curriculum.policy.id,
        pulls=curriculum.mixer.pulls,
        replay_to=history.last_step if history.replaying else None,
    )
    return trainer


def _policies(run: RunDirectory, begun: bool) -> list[Policy]:
    """Read policy.json; a run that has not begun may do without, and gets its first."""
    try:
        return read_policies(run.policy)
    except MissingError:
        if begun:
            raise
    policies = [FIRST]
    try:
        write_policies(run.policy, policies)
    except OSError as error:
        raise from_os_error(error, "writing policy.json") from error
    return policies


def _history(
    run: RunDirectory, recovered: Recovered | None, reporter: DaemonReporter
) -> LossHistory:
    """Set aside what was rejected, and take up the history or begin one."""
    try:
        if recovered is None:
            return LossHistory.create(run.history)
        for rejected in recovered.rejected:
            recovery.set_aside(run, rejected)
            reporter.event("rejected", step=rejected.step, reason=rejected.reason)
        if recovered.history_fault:
            reporter.event("history_fault", detail=recovered.history_fault)
        history, cut = recovery.open_history(run, recovered)
    except OSError as error:
        raise from_os_error(error, "taking up the loss history") from error
    if cut:
        reporter.event("history_cut", bytes=cut, last_step=history.last_step)
    return history


def _tell_arms(curriculum: Curriculum, reporter: DaemonReporter) -> None:
    """Name the zombies of the record, the sources new to it, and what the policy names in vain."""
    for zombie in curriculum.mixer.zombies:
        reporter.event("zombie", name=zombie.name, pulls=zombie.pulls, weight=zombie.weight)
    for name in curriculum.mixer.newcomers:
        reporter.event("new_source", name=name)
    for name in curriculum.mixer.ignored:
        reporter.event(
            "ignored", name=name, policy=curriculum.policy.id, why="it is not a source any more"
        )


def _tell_environment(
    last: Companion | None, now: dict[str, Any], reporter: DaemonReporter
) -> bool:
    """Tell what differs from the environment of the checkpoint; return whether nothing does."""
    if last is None or not last.environment:
        return True
    changes = {
        key: [last.environment.get(key), now.get(key)]
        for key in sorted(last.environment.keys() | now.keys())
        if last.environment.get(key) != now.get(key)
    }
    if changes:
        reporter.event("environment", changes=changes)
    return not changes


def _answer_what_is_left(run: RunDirectory, reporter: DaemonReporter) -> None:
    """Emit acknowledgements lost in a crash, and refuse requests to daemons that are gone."""
    try:
        answered = {e.get("id") for e in events.read(run.events) if e["event"] == "acknowledged"}
        for step in run.checkpoint_steps():
            try:
                found = companion.read(run.companion(step))
            except (DataError, OSError):
                continue
            for request_id in found.requests:
                if request_id not in answered:
                    _answer(run, request_id, found, reporter)
        for request_id, why in requests.take(run, ProcessIdentity.own())[1].items():
            reporter.event("refused", id=request_id, why=why)
            requests.discard(run, request_id)
    except (OSError, DataError) as error:
        reporter.alarm("requests", f"what was left of earlier requests: {error}")


def _answer(run: RunDirectory, request_id: str, found: Companion, reporter: DaemonReporter) -> None:
    """Acknowledge what a dead daemon served, with the pin that was asked for."""
    if requests.wants_pin(run, request_id):
        commit.pin(run, found.step)
    acknowledge(reporter, run, request_id, found)
    requests.discard(run, request_id)


def _audits(run: RunDirectory, policy: str, reporter: DaemonReporter) -> list[dict[str, Any]]:
    """Return the audits so far; those of another policy are the archive's, and reset here."""
    try:
        content = samples.read(run.samples)
        if content.get("policy") == policy:
            return list(content["audits"])
    except DataError as error:
        files.rename(run.samples, run.samples.with_name(run.samples.name + REJECTED_SUFFIX))
        reporter.event("fault", what="samples", detail=error.message)
    except OSError as error:
        raise from_os_error(error, "reading .samples.json") from error
    try:
        samples.write(run.samples, policy, [])
    except OSError as error:
        reporter.alarm("samples", from_os_error(error, "writing .samples.json").message)
    return []
