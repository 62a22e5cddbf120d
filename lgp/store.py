"""Stage folders: a result is computed once and reused by every job that needs it.

In: a stage's name, version and the settings that affect it. Out: a finished folder. What is
stored is unknown here. A stage is written aside, its manifest last, then renamed into place: a
kill at any instant leaves either nothing or a complete stage. Locks only save double work; they
may be missing on shared file systems, and correctness does not rest on them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lgp.stopping import stop_if_asked

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""What a file system without locks answers."""


def digest_of(value: Any) -> str:
    """sha256 of a JSON-able value in canonical form."""
    digest = hashlib.sha256()
    # Piece by piece: the texts of a corpus would otherwise be in memory twice more.
    for piece in json.JSONEncoder(sort_keys=True, separators=(",", ":")).iterencode(value):
        digest.update(piece.encode())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(path: Path, timeout_s: float = -1) -> Iterator[bool]:
    """Hold a lock that is freed when its process dies; False where the file system has none.

    A lock by the mere presence of a file, which libraries offer instead, is not used: after a dead
    host it would hold everybody up for ever.

    Args:
        timeout_s: below 0 = wait; else `filelock.Timeout` is raised after it.
    """
    from filelock import FileLock  # only stages lock; the engine runs without it

    lock = FileLock(path, timeout_s, fallback_to_soft=False)
    try:
        lock.acquire()
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in NO_LOCKS:  # a Timeout, too
            raise
        log.warning("%s: no locks on this file system, so work may be done twice", path.parent)
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


@dataclass(frozen=True)
class Store:
    """A folder of stages."""

    root: Path

    def path(self, name: str, version: int, inputs: Mapping[str, Any]) -> Path:
        """Where a stage with these inputs lives, finished or not."""
        key = digest_of({"stage": name, "version": version, "inputs": inputs})[:16]
        return self.root / f"{name}-{key}"

    def get(
        self,
        name: str,
        version: int,
        inputs: Mapping[str, Any],
        compute: Callable[[Path], Mapping[str, Any] | None],
    ) -> Path:
        """The finished folder of a stage, computed if it is not there.

        Args:
            version: raise it when the stage's code changes its results.
            inputs: JSON-able settings and input digests; they name the folder.
            compute: fills the folder it is given; what it returns is kept in the manifest.
        """
        final = self.path(name, version, inputs)
        if (final / MANIFEST).is_file():
            log.info("%s: reused %s", name, final.name)
            return final
        stop_if_asked()
        self.root.mkdir(parents=True, exist_ok=True)
        with locked(self.root / f".{final.name}.lock") as held:
            if (final / MANIFEST).is_file():
                log.info("%s: reused %s", name, final.name)
                return final
            if held:  # what is left here is of killed jobs
                for left in self.root.glob(f".{final.name}.{socket.gethostname()}-*"):
                    shutil.rmtree(left, ignore_errors=True)
            own = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            aside = self.root / f".{final.name}.{own}"
            aside.mkdir()
            try:
                facts = compute(aside)
                manifest = {
                    "stage": name,
                    "version": version,
                    "inputs": dict(inputs),
                    "facts": dict(facts or {}),
                    "files": sorted(p.name for p in aside.iterdir()),
                }
                write_aside(aside / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True))
                try:
                    aside.rename(final)
                except OSError:
                    # Another machine finished first (locks may not reach it); its bits are ours.
                    if not (final / MANIFEST).is_file():
                        raise
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        return final


def facts(stage: Path) -> dict[str, Any]:
    """What a finished stage said about itself."""
    found: dict[str, Any] = json.loads((stage / MANIFEST).read_text())["facts"]
    return found


def read_object(path: Path, way_out: str) -> dict[str, Any]:
    """A JSON object from a file; empty where there is no file.

    Args:
        way_out: what to do about a file that holds something else, for the error.
    Raises:
        ValueError: the file is not JSON, or no object.
    """
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); {way_out}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object; {way_out}")
    return found


def write_aside(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old or the new one, never a part."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(aside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
