"""How things are timed and compared, and on what they ran.

In: callables and id lists. Out: seconds, recalls, facts about the machine. What is called is
unknown here.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Name = TypeVar("Name", bound=Hashable)


def interleaved(
    calls: Mapping[Name, Callable[[], Any]], repeats: int
) -> dict[Name, list[float]]:  # fmt: skip
    """Seconds of every call, `repeats` times in turn, so that foreign load hits all alike."""
    taken: dict[Name, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - start)
    return taken


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    """Median, least and all, as the results file keeps them."""
    return {
        "median_s": median(seconds),
        "least_s": min(seconds),
        "runs_s": [round(s, 6) for s in seconds],
    }


def exact_ids(vectors: npt.NDArray[np.float32], queries: npt.NDArray[np.float32], k: int) -> Ids:
    """The k rows with the largest dot product in float64, int64 [Q, k]; none of lgp is used."""
    wide = vectors.astype(np.float64).T
    parts = []
    for block in np.array_split(queries.astype(np.float64), -(-len(queries) // 256)):
        score = block @ wide
        parts.append(np.argpartition(-score, k - 1, axis=1)[:, :k])
    return np.concatenate(parts)


def recall(found: npt.NDArray[Any], exact: Ids) -> float:
    """Share of the exact nearest neighbors that were found; order does not count."""
    hits = (np.asarray(found)[:, :, None] == exact[:, None, :]).any(1)
    return float(hits.mean())


def bracket(curve: Sequence[tuple[float, float]], level: float) -> tuple[int, int] | None:
    """Places in a curve of (effort, recall) around the first recall that reaches the level.

    Returns:
        (before, at); twice 0 when the least effort reaches it; None when nothing does.
    """
    for at, (_, reached) in enumerate(curve):
        if reached >= level:
            return max(0, at - 1), at
    return None


def at_level(low: tuple[float, float], high: tuple[float, float], level: float) -> float:
    """Seconds at a recall, linear between two (recall, seconds); above `level` already: low's."""
    if high[0] == low[0] or low[0] >= level:
        return low[1]
    share = (level - low[0]) / (high[0] - low[0])
    return low[1] + share * (high[1] - low[1])


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """ours / theirs; None where either is missing."""
    return None if ours is None or theirs is None else ours / theirs


def worst(ratios: Sequence[float | None]) -> float | None:
    """The largest ratio there is; None when there is none."""
    return max((r for r in ratios if r is not None), default=None)


def machine() -> dict[str, Any]:
    """Processor, cores, system and load: what a figure cannot be read without."""
    model = platform.processor() or platform.machine()
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        named = [line for line in facts.read_text().splitlines() if line.startswith("model name")]
        model = named[0].split(":", 1)[1].strip() if named else model
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def versions(packages: Sequence[str]) -> dict[str, str | None]:
    """Installed versions; None where a package is missing."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def commit() -> str | None:
    """The commit of this checkout; None outside one."""
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return None
    return asked.stdout.strip() or None if asked.returncode == 0 else None
