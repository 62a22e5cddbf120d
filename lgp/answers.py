"""The answer log: every model answer, kept for ever, never asked twice.

In: {key: answer}. Out: the answer of a key, from this process or any other that wrote into the
folder. Append-only segments, one per process; a batch is one line and one write, so it is logged
whole or not at all, and a kill loses at most the batch in flight. What a key means is the
caller's business.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lgp.store import digest_of

log = logging.getLogger(__name__)


class AnswerLog:
    """A folder of JSON-lines segments, read whole at the start.

    Where two processes answered one key, the first record by (segment name, offset) wins, so
    every reader of the same folder sees the same answers.

    Attributes:
        torn: batches dropped because a write was cut short.
    """

    def __init__(self, folder: Path, shipped: Path | None = None) -> None:
        """
        Args:
            shipped: a folder made elsewhere, read first and never written.
        """
        self.folder = folder
        self.torn = 0
        self._answers: dict[str, Any] = {}
        for place in (shipped, folder):
            for segment in sorted(place.glob("*.jsonl")) if place is not None else ():
                self._read(segment)
        if self.torn:
            log.warning("%s: %d cut-off lines dropped, their prompts count as unanswered",
                        folder, self.torn)  # fmt: skip
        self._segment = folder / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}.jsonl"

    def _read(self, segment: Path) -> None:
        with open(segment, "rb") as file:
            for line in file:
                try:
                    for key, answer in json.loads(line).items():
                        self._answers.setdefault(key, answer)
                except (ValueError, AttributeError):
                    self.torn += 1

    def __len__(self) -> int:
        return len(self._answers)

    def __contains__(self, key: str) -> bool:
        return key in self._answers

    def __getitem__(self, key: str) -> Any:
        return self._answers[key]

    def append(self, records: Mapping[str, Any]) -> None:
        """Log a batch in one write that has reached the disk when this returns."""
        if not records:
            return
        line = json.dumps(dict(records), ensure_ascii=True) + "\n"
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._segment, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            data = line.encode()
            while data:
                data = data[os.write(handle, data) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        for key, answer in records.items():
            self._answers.setdefault(key, answer)

    def digest(self, keys: Sequence[str]) -> str:
        """sha256 over the answers of some keys, in order: what a stage's manifest keeps."""
        return digest_of([self._answers[key] for key in keys])
