"""Sources to token files: the tokenizer, then data/NAME.{train,validation}.bin and a manifest each.

Token files are flat little-endian uint16 or uint32; each document is followed by the separator.
Preparation can be killed at any moment and taken up again; the result is the same, byte for byte.
What is done is not done again, unless its inputs changed; once the run has trained, its tokens stay
as they are even then, and the change is told.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from andread.curriculum.chunks import Chunks
from andread.curriculum.inputs import Input, find_inputs, inputs_digest
from andread.curriculum.partial import Partial, discard_partial
from andread.curriculum.sample import sample
from andread.curriculum.sources import Reader
from andread.curriculum.tokenizer import Tokenizer, read_tokenizer
from andread.rundir import disk, files
from andread.rundir.errors import (
    BusyError,
    ConfigError,
    DataError,
    MissingError,
    from_os_error,
)
from andread.rundir.layout import RunDirectory
from andread.rundir.manifest import (
    SPLITS,
    TOKEN_BYTES,
    VERSION,
    Manifest,
    digest,
    dtype_for,
    fingerprint_of,
    read_manifest,
)
from andread.rundir.settings import Settings, SourceSettings

JOURNAL_EVERY: Final = 32 << 20
"""Bytes of tokens between two entries of the journal: a few seconds of work."""
REPETITIVE: Final = 0.5
"""Below this share of unique tokens a person is told."""


class StoppedError(BusyError):
    """`stopping()` turned true. What is done is kept; another call takes it up."""


@dataclass(frozen=True)
class Progress:
    """What preparation is doing."""

    phase: str
    """sampling, training, tokens (all three with done and total), ready, note."""
    source: str = ""
    done: int = 0
    """Input bytes behind, of `total`."""
    total: int = 0
    text: str = ""
    """For a note: what a person should know."""


Report = Callable[[Progress], None]
Stopping = Callable[[], bool]


def prepare(
    run: RunDirectory,
    settings: Settings,
    progress: Report = lambda _: None,
    stopping: Stopping = lambda: False,
) -> list[Manifest]:
    """Make whatever tokens of `run` are missing; return the manifests of all its sources.

    Raises `StoppedError` soon after `stopping()` turns true, `BusyError` if another process is at
    it, and the errors of rundir.errors for what is wrong with settings, sources or disk.
    """
    try:
        with _alone(run):
            return _Preparation(run, settings, progress, stopping).all()
    except OSError as error:
        raise from_os_error(error, "preparing tokens") from error


@contextlib.contextmanager
def _alone(run: RunDirectory) -> Iterator[None]:
    """Keep other preparations of the same run out; sweep what a dead one left."""
    files.make_directory(run.data)
    descriptor = disk.open(run.data_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, files.FILE_MODE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"another process is preparing {run.data}", "wait until it is done"
            ) from None
        files.sweep(run.data)
        yield
    finally:
        os.close(descriptor)


class _Preparation:
    """One call of `prepare`."""

    def __init__(
        self, run: RunDirectory, settings: Settings, progress: Report, stopping: Stopping
    ) -> None:
        self.run = run
        self.settings = settings
        self.progress = progress
        self.stopping = stopping
        self.vocabulary = settings.model.vocabulary
        self.dtype = dtype_for(self.vocabulary)
        self.trained = has_trained(run)

    def all(self) -> list[Manifest]:
        tokenizer, sha256 = self.tokenizer()
        return [self.one(source, tokenizer, sha256) for source in self.settings.sources]

    def poll(self, phase: str, reader: Reader) -> None:
        if self.stopping():
            raise StoppedError(
                "preparation was stopped before its end; what is done is kept",
                "run `andrectl prepare` again to take it up",
            )
        self.progress(Progress(phase, reader.source.name, reader.done, reader.total))

    def note(self, source: str, text: str) -> None:
        self.progress(Progress("note", source, text=text))

    # The tokenizer

    def tokenizer(self) -> tuple[Tokenizer, str]:
        """Return the run's tokenizer and its hash; make it if tokens do not bind it yet."""
        data, separator = self._tokenizer_bytes(), self.settings.tokenizer.separator
        tokenizer = Tokenizer.parse(data, separator, str(self.run.tokenizer))
        if tokenizer.size > self.vocabulary:
            raise ConfigError(
                f"the tokenizer has {tokenizer.size:,} tokens, "
                f"[model] vocabulary is {self.vocabulary:,}",
                f"make the vocabulary larger, or remove {self.run.tokenizer} and {self.run.data} "
                "to begin anew",
            )
        if not files.exists(self.run.tokenizer) or read_tokenizer(self.run.tokenizer) != data:
            files.replace(self.run.tokenizer, data)
        return tokenizer, hashlib.sha256(data).hexdigest()

    def _tokenizer_bytes(self) -> bytes:
        bound = self.trained or any(self.run.data.glob("*.json"))
        bound = bound or any(self.run.data.glob("*.partial"))
        own = read_tokenizer(self.run.tokenizer) if files.exists(self.run.tokenizer) else b""
        if self.trained and not own:
            raise MissingError(
                f"{self.run.tokenizer} is gone, and the run has trained with it",
                "restore it: another one would give the tokens another meaning",
            )
        given = self.settings.tokenizer.path
        path = self.run.path / Path(given).expanduser()
        if given and not (bound and own and not path.exists()):
            data = read_tokenizer(path)
            if self.trained and data != own:
                raise ConfigError(
                    f"{path} is not the tokenizer that the run has trained with",
                    f"set [tokenizer] path back, or to {self.run.tokenizer}",
                )
            return data
        if bound and own:
            return own
        return self._trained_tokenizer()

    def _trained_tokenizer(self) -> bytes:
        found = [(source, self._find(source)) for source in self.settings.sources]
        texts = sample(found, lambda reader: self.poll("sampling", reader))
        self.progress(Progress("training", total=sum(map(len, texts))))

        def fed() -> Iterator[str]:
            for text in texts:
                if self.stopping():
                    raise StoppedError("preparation was stopped", "run `andrectl prepare` again")
                yield text

        separator = self.settings.tokenizer.separator
        return Tokenizer.train(fed(), self.vocabulary, separator).dump()

    def _find(self, source: SourceSettings) -> list[Input]:
        return find_inputs(source, self.run.path)

    # One source

    def one(self, source: SourceSettings, tokenizer: Tokenizer, sha256: str) -> Manifest:
        """Return the manifest of `source`; make its tokens if there are none that hold."""
        recorded = self._recorded(source.name)
        recipe = self._recipe(source)
        try:
            inputs = self._find(source)
        except MissingError:
            if recorded is None or not self._intact(recorded) or recorded.tokenizer != sha256:
                raise
            self.note(source.name, "its inputs are gone; the tokens made from them are kept")
            return recorded
        inputs_now = inputs_digest(inputs)
        if recorded is not None:
            same = (recorded.inputs, recorded.recipe) == (inputs_now, recipe)
            if self.trained and recorded.tokenizer != sha256:
                raise ConfigError(
                    f'the tokens of source "{source.name}" were made with another tokenizer',
                    f"restore {self.run.tokenizer}",
                )
            if self._intact(recorded) and recorded.tokenizer == sha256 and (same or self.trained):
                if not same:
                    self.note(
                        source.name,
                        "its inputs or settings changed since the run began; its tokens are kept",
                    )
                return recorded
            if self.trained and not same:
                raise ConfigError(
                    f'the tokens of source "{source.name}" are missing or damaged, and its inputs '
                    "are no longer those they were made from",
                    f"restore {self.run.data}, or the inputs",
                )
        plan = digest((sha256, recipe, inputs_now))
        return self._make(source, inputs, tokenizer, sha256, plan, recorded)

    def _recorded(self, name: str) -> Manifest | None:
        try:
            return read_manifest(self.run.manifest(name))
        except MissingError:
            return None
        except DataError as error:
            if self.trained:
                raise
            self.note(name, f"prepared again: {error.message}")
            return None

    def _recipe(self, source: SourceSettings) -> str:
        """Return a hash of the settings that decide how inputs become tokens."""
        share, separator = self.settings.data.validation, self.settings.tokenizer.separator
        return digest((source.format, source.text_key, share, separator, self.vocabulary))

    def _intact(self, manifest: Manifest) -> bool:
        """Tell whether the token files have the recorded sizes."""
        return all(
            files.size(self.run.tokens(manifest.source, split)) == manifest.size(split)
            for split in SPLITS
        )

    def _make(
        self,
        source: SourceSettings,
        inputs: Sequence[Input],
        tokenizer: Tokenizer,
        sha256: str,
        plan: str,
        before: Manifest | None,
    ) -> Manifest:
        reader = Reader(source, inputs)
        partial = Partial(self.run, source.name, plan, self.dtype)
        try:
            chunks = Chunks(
                reader,
                share=self.settings.data.validation,
                vocabulary=self.vocabulary,
                poll=lambda: self.poll("tokens", reader),
            )
            unsaved = 0
            for units, parts in chunks.after(partial.units, tokenizer):
                for split, data in parts.items():
                    partial.append(split, data)
                    unsaved += len(data)
                self.poll("tokens", reader)
                if unsaved >= JOURNAL_EVERY:
                    partial.save(units)
                    unsaved = 0
            manifest = self._manifest(reader, partial, sha256, before)
            self._check(manifest, before)
            partial.commit(manifest)
        finally:
            partial.close()
        self.progress(Progress("ready", source.name, reader.total, reader.total))
        return manifest

    def _manifest(
        self, reader: Reader, partial: Partial, sha256: str, before: Manifest | None
    ) -> Manifest:
        width = TOKEN_BYTES[self.dtype]
        train, validation = partial.sha256("train"), partial.sha256("validation")
        unique = partial.unique_tokens("train")
        if self.trained and before is not None and not before.unique_tokens:
            unique = 0  # the run was begun without counting, and goes on so
        return Manifest(
            version=VERSION,
            source=reader.source.name,
            dtype=self.dtype,
            vocabulary=self.vocabulary,
            documents=reader.documents,
            train_tokens=partial.size("train") // width,
            train_sha256=train,
            validation_tokens=partial.size("validation") // width,
            validation_sha256=validation,
            input_bytes=reader.total,
            inputs=inputs_digest(reader.inputs),
            recipe=self._recipe(reader.source),
            tokenizer=sha256,
            fingerprint=fingerprint_of(self.dtype, train, validation, unique),
            unique_tokens=unique,
            skipped=dict(reader.skipped),
        )

    def _check(self, manifest: Manifest, before: Manifest | None) -> None:
        """Refuse tokens that cannot be trained on, or are not those trained on before."""
        context, name = self.settings.model.context, manifest.source
        if not manifest.windows("train", context):
            discard_partial(self.run, name)
            raise DataError(
                f'source "{name}" has {manifest.train_tokens:,} training tokens; one window needs '
                f"{context + 1:,} ([model] context + 1)",
                "add text to it, or drop it from run.toml",
            )
        if self.trained and before is not None and before.fingerprint != manifest.fingerprint:
            discard_partial(self.run, name)
            raise DataError(
                f'source "{name}" no longer gives the tokens that the run has trained on',
                f"restore {self.run.data}, or the inputs",
            )
        if manifest.unique_share < REPETITIVE:
            self.note(
                name,
                f"it repeats itself: {manifest.unique_tokens:,} of its "
                f"{manifest.train_tokens:,} training tokens are unique, and epochs count by those",
            )
        if self.settings.data.validation and not manifest.windows("validation", context):
            self.note(
                name,
                f"its validation split has {manifest.validation_tokens:,} tokens, less than one "
                "window: it will not be validated",
            )


def has_trained(run: RunDirectory) -> bool:
    """Tell whether the loss history of `run` has an entry."""
    try:
        with files.opened(run.history) as descriptor:
            return b"{" in os.pread(descriptor, 64, 0)
    except FileNotFoundError:
        return False
