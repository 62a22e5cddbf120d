"""Stopping early without a loss: SIGUSR1 asks for it, loops agree where all is on disk.

In: the signal, as SLURM sends it before a time limit. Out: `Stopped`, an exit with status 85,
raised by whoever has just written what it had. Giving the same command again goes on from there.
"""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

log = logging.getLogger(__name__)

EX_REQUEUE = 85
"""Exit status of a process that stopped because it was asked to, and wants to be run again."""

_asked = False


class Stopped(SystemExit):
    """The process ends with `EX_REQUEUE`; no `except Exception` holds it up."""

    def __init__(self) -> None:
        super().__init__(EX_REQUEUE)


def listen() -> None:
    """From now on SIGUSR1 asks this process to stop; only a main thread can listen."""
    if hasattr(signal, "SIGUSR1") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, _ask)


def _ask(number: int, frame: FrameType | None) -> None:
    # Only a flag: the handler may run between any two instructions, also in the middle of a write.
    global _asked
    _asked = True


def stop_if_asked() -> None:
    """End the process if it was asked to; call it where everything so far has reached the disk."""
    if _asked:
        log.warning("SIGUSR1: stopped with status %d, all is kept; run it again", EX_REQUEUE)
        raise Stopped
