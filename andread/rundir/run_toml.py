"""Reading run.toml: into `Settings`, with every reason why it could not be a run's."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any, Final

from andread.rundir import files
from andread.rundir.errors import AndreadError, ConfigError, MissingError, from_os_error
from andread.rundir.settings import (
    MAX_PARAMETERS,
    PRESETS,
    AuditSettings,
    DataSettings,
    EngineSettings,
    FaultSettings,
    ModelSettings,
    OptimizerSettings,
    RunSettings,
    Settings,
    SourceSettings,
    TokenizerSettings,
)
from andread.rundir.tables import nearest, read_table

_MAX_BYTES: Final = 4 << 20
_TABLES: Final = {
    "run": RunSettings,
    "model": ModelSettings,
    "tokenizer": TokenizerSettings,
    "data": DataSettings,
    "optimizer": OptimizerSettings,
    "engine": EngineSettings,
    "audit": AuditSettings,
    "faults": FaultSettings,
}


def read_settings(path: Path) -> Settings:
    """Read and check run.toml at `path`.

    A link is followed. Raises `MissingError` if it is not there, `DataError` if it is no regular
    file, `ConfigError` for whatever is wrong in it.
    """
    try:
        text = files.read_bytes(path.resolve(), _MAX_BYTES).decode("utf-8")
        document = tomllib.loads(text)
    except FileNotFoundError:
        raise MissingError(
            f"{path} does not exist", "andrectl init writes one from a preset and sources"
        ) from None
    except OSError as error:
        raise from_os_error(error, f"reading {path}") from error
    except (ValueError, RuntimeError) as error:  # also a number or nesting beyond Python's limits
        raise ConfigError(f"{path} is not valid TOML: {error}", "correct that line") from None
    try:
        return settings_from(document)
    except AndreadError as error:
        raise type(error)(f"{path}: {error.message}", error.hint) from None


def settings_from(document: dict[str, Any]) -> Settings:
    """Make `Settings` from the parsed run.toml; raise `ConfigError`."""
    known = [*_TABLES, "source"]
    for key, value in document.items():
        if key not in known:
            raise ConfigError(
                f"unknown table [{key}]{nearest(key, known)}", f"known tables: {', '.join(known)}"
            )
        if key != "source" and not isinstance(value, dict):
            raise ConfigError(f"{key} = {value!r}: expected a table", f"write it as [{key}]")
    for required in ("run", "model", "optimizer", "source"):
        if not document.get(required):
            raise ConfigError(f"the table [{required}] is missing", f"add [{required}] to it")
    tables: dict[str, Any] = {
        name: read_table(cls, document[name], f"[{name}]")
        for name, cls in _TABLES.items()
        if name in document and name != "model"
    }
    settings = Settings(
        model=_model(document["model"]),
        sources=_sources(document["source"]),
        **tables,
    )
    check_together(settings)
    return settings


def _model(table: dict[str, Any]) -> ModelSettings:
    """Read `[model]`, filling what the preset gives, and check that such a model can exist."""
    given = read_table(ModelSettings, table, "[model]")
    if given.preset and given.preset not in PRESETS:
        raise ConfigError(
            f'[model] preset = "{given.preset}" is unknown{nearest(given.preset, PRESETS)}',
            f"presets: {', '.join(PRESETS)}",
        )
    overrides = {key: value for key, value in table.items() if key != "preset"}
    model = dataclasses.replace(given, **(PRESETS.get(given.preset, {}) | overrides))
    needed = ["context", "vocabulary"]
    if not model.factory:
        needed += ["width", "heads", "layers"]
    for key in needed:
        if getattr(model, key) < 1:
            raise ConfigError(
                f"[model] {key} is missing or 0", f"name a preset ({', '.join(PRESETS)}) or set it"
            )
    if model.factory:
        return model
    if model.width % model.heads:
        raise ConfigError(
            f"[model] width {model.width} is not a multiple of heads {model.heads}",
            "every head takes an equal share of the width",
        )
    if model.n_params > MAX_PARAMETERS:
        raise ConfigError(
            f"[model] has {model.n_params:,} parameters; a checkpoint file holds at most "
            f"{MAX_PARAMETERS:,} (int32)",
            "make the model smaller: beyond that size only a sharded checkpoint will do",
        )
    return model


def _sources(tables: Any) -> tuple[SourceSettings, ...]:
    """Read every `[[source]]`; their names must differ."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError("source must be a list of tables", "write each one as [[source]]")
    sources = tuple(
        read_table(SourceSettings, table, f"[[source]] {table.get('name', number)}")
        for number, table in enumerate(tables, 1)
    )
    names = [source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f'two sources are named "{name}"', "give each its own name")
    return sources


def check_together(settings: Settings) -> None:
    """Check what no single key can tell."""
    if settings.engine.micro_batch > settings.optimizer.batch:
        raise ConfigError(
            f"[engine] micro_batch {settings.engine.micro_batch} is larger than "
            f"[optimizer] batch {settings.optimizer.batch}",
            "make it a divisor of the batch, or 0",
        )
    if settings.engine.micro_batch and settings.optimizer.batch % settings.engine.micro_batch:
        raise ConfigError(
            f"[optimizer] batch {settings.optimizer.batch} is not a multiple of "
            f"[engine] micro_batch {settings.engine.micro_batch}",
            "make it a divisor of the batch, or 0",
        )
    if settings.optimizer.warmup_steps >= settings.optimizer.decay_steps:
        raise ConfigError(
            f"[optimizer] warmup_steps {settings.optimizer.warmup_steps} does not end before "
            f"decay_steps {settings.optimizer.decay_steps}",
            "shorten the warm-up or lengthen the decay",
        )
    if not settings.tokenizer.path and any(s.format == "tokens" for s in settings.sources):
        raise ConfigError(
            "a source of format tokens needs the tokenizer it was made with",
            "set [tokenizer] path; it then holds for all sources",
        )
