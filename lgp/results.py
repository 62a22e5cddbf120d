"""The per-query lines of a run folder as dense arrays, and their means as `metrics.csv`.

Input: `queries.jsonl`, one JSON object per (graph, selector, seed, ranking, mode, value, query).
Output: `Results`, every column as [settings, queries]. Comparing and printing are left to
`comparison` and `report`. Nothing here depends on the order of the lines.
"""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from lgp.config_refine import REPAIR
from lgp.evaluate import MEASURES

Floats = NDArray[np.float64]

QUERIES_FILE = "queries.jsonl"
ERROR_FILE = "error.txt"
"""What stopped a job of a sweep."""
SHARD_FILE = "shard.json"
"""What a shard's run folder holds instead of results: names of the stages with its decisions."""
ELSEWHERE = ("run_dir", "store_dir", "tracking", "device", "threads")
"""Settings that say where and how a run is made, and do not change it."""
GRAPHS = ("vanilla", "refined", "exact")
RANKINGS = ("greedy", "rerank")
MODES = ("width", "budget", "exact")
METRICS = (*MEASURES, "reach")

_SETTING_KEYS = ("graph", "selector", "seed", "ranking", "mode", "value")
_COUNT_KEYS = ("n_dist", "n_returned", "n_dist_above")
# What lines written before these keys existed mean.
_FILLED_IN = {"n_dist_above": 0}
_KEYS = (*_SETTING_KEYS, "query_id", *_COUNT_KEYS, *METRICS)
# Parsing many lines as one JSON array costs half of parsing them one by one.
_CHUNK_LINES = 20_000


@dataclass(frozen=True, order=True)
class Setting:
    """What was searched and how; `value` is the search width or the distance budget."""

    graph: str
    selector: str
    seed: int
    ranking: str
    mode: str
    value: int

    @property
    def label(self) -> str:
        """The name shown: the selector of a refined graph, else `vanilla` or `exact`."""
        return self.selector if self.graph == "refined" else self.graph


@dataclass(frozen=True)
class Results:
    """One run folder, dense.

    `columns`: `n_dist`, `n_returned`, `n_dist_above` (the part of `n_dist` on upper layers, 0 for
    flat graphs), `reach` and the measures (fractions), each float64 [n_settings, n_queries]; NaN
    where there is no line, and in `reach` where it was null.
    `dropped_lines`: 1 if the last line was cut short, else 0.
    """

    query_ids: tuple[str, ...]
    settings: tuple[Setting, ...]
    columns: dict[str, Floats]
    dropped_lines: int = 0

    def labels(self) -> list[str]:
        """List the graphs shown, vanilla first, then selectors by name; `exact` is not one."""
        found = {s.label for s in self.settings if s.graph == "refined"}
        vanilla = ["vanilla"] if any(s.graph == "vanilla" for s in self.settings) else []
        return vanilla + sorted(found)

    def controls(self, main: str | None) -> list[str]:
        """List the selectors that are controls of `main`. A repair places edits of its own number
        at its own nodes: it is nobody's control."""
        return [x for x in self.labels() if x not in ("vanilla", REPAIR, main)]

    def rankings(self) -> list[str]:
        """List the rankings present, greedy first."""
        return [r for r in RANKINGS if any(s.ranking == r for s in self.settings)]

    def points(self, ranking: str) -> list[tuple[str, int]]:
        """List the (mode, value) points of a ranking: widths rising, then budgets rising."""
        found = {(s.mode, s.value) for s in self.settings if s.ranking == ranking}
        return sorted((p for p in found if p[0] != "exact"), key=lambda p: (MODES.index(p[0]), p))

    def rows_by_seed(self, label: str, ranking: str, mode: str, value: int) -> dict[int, int]:
        """Map each graph seed of a point to its row in `columns`; empty if it was not run."""
        wanted = (label, ranking, mode, value)
        return {
            s.seed: row
            for row, s in enumerate(self.settings)
            if (s.label, s.ranking, s.mode, s.value) == wanted
        }

    def notes(self) -> list[str]:
        """Say in sentences what is missing, so that no number is read as more than it is."""
        notes = []
        if self.dropped_lines:
            notes.append(f"{self.dropped_lines} truncated last line of {QUERIES_FILE} dropped.")
        counts = np.isfinite(self.columns[MEASURES[0]]).sum(axis=1)
        short = np.flatnonzero(counts < len(self.query_ids))
        if len(short):
            s = self.settings[short[0]]
            notes.append(
                f"{len(short)} of {len(self.settings)} settings lack queries, first: {s.label} "
                f"seed {s.seed}, {s.ranking}, {s.mode} {s.value} with {counts[short[0]]} of "
                f"{len(self.query_ids)}; comparisons use the queries both sides have."
            )
        seeds = {x: {s.seed for s in self.settings if s.label == x} for x in self.labels()}
        for label, own in seeds.items():
            if own != seeds.get("vanilla", own):
                notes.append(
                    f"{label} has graph seeds {sorted(own)}, vanilla {sorted(seeds['vanilla'])}; "
                    "comparisons use the seeds both have."
                )
        if len(self.query_ids) < 30:
            notes.append(f"{len(self.query_ids)} queries only: intervals are rough below 30.")
        return notes


def read_queries(run_dir: Path | str) -> Results:
    """Read the per-query lines of a run folder.

    A last line that was cut short (no newline, not JSON) is dropped and counted.

    Raises:
        FileNotFoundError: no `queries.jsonl` in the folder.
        ValueError: a line that is not an object with all keys, an unknown choice, a value out of
            range, or a (setting, query) given twice; the message names the line or the setting.
    """
    path = Path(run_dir) / QUERIES_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"no {QUERIES_FILE} in {run_dir}; give the folder of a finished run"
        )
    try:
        with path.open("rb") as file:
            return _read(file)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_metrics_csv(results: Results, path: Path | str) -> None:
    """Write one row per setting and metric: means over queries on the 0-100 scale, 4 decimals.

    `reach` is left out where it does not exist (exact search). `n_dist` is the mean per query.
    """
    n_dist = results.columns["n_dist"]
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*_SETTING_KEYS, "metric", "mean", "n_dist", "n_queries"])
        for row, s in enumerate(results.settings):
            for metric in METRICS:
                values = results.columns[metric][row]
                values = values[np.isfinite(values)]
                if len(values):
                    mean, dist = f"{100 * values.mean():.4f}", f"{np.nanmean(n_dist[row]):.4f}"
                    setting = [s.graph, s.selector, s.seed, s.ranking, s.mode, s.value]
                    writer.writerow([*setting, metric, mean, dist, len(values)])


def _read(file: BinaryIO) -> Results:
    settings: dict[tuple[object, ...], int] = {}
    queries: dict[object, int] = {}
    codes: list[NDArray[np.int64]] = []
    numbers: list[Floats] = []
    first, dropped = 1, 0
    while lines := list(islice(file, _CHUNK_LINES)):
        if not lines[-1].endswith(b"\n") and not _is_json(lines[-1]):
            dropped = 1
            lines = lines[:-1]
        if lines:
            chunk_codes, chunk_numbers = _parse(lines, first, settings, queries)
            codes.append(chunk_codes)
            numbers.append(chunk_numbers)
        first += len(lines)
    if not codes:
        raise ValueError("there is no complete line; run the evaluation again")
    return _assemble(settings, queries, np.concatenate(codes), np.concatenate(numbers), dropped)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _parse(
    lines: Sequence[bytes],
    first: int,
    settings: dict[tuple[object, ...], int],
    queries: dict[object, int],
) -> tuple[NDArray[np.int64], Floats]:
    """Turn lines into codes [n, 2] of (setting, query) and numbers [n, counts + metrics]."""
    try:
        records = json.loads(b"[" + b",".join(lines) + b"]")
        fields = list(map(itemgetter(*_KEYS), [_FILLED_IN | record for record in records]))
        numbers = np.array([f[7:] for f in fields], dtype=np.float64)
    except (ValueError, TypeError, KeyError):
        raise _first_fault(lines, first) from None
    if len(fields) != len(lines):
        raise _first_fault(lines, first)
    codes = np.empty((len(lines), 2), dtype=np.int64)
    for i, f in enumerate(fields):
        setting = settings.get(f[:6])
        if setting is None:
            _check_setting(f[:6], first + i)
            setting = settings.setdefault(f[:6], len(settings))
        query = queries.get(f[6])
        if query is None:
            if not isinstance(f[6], str):
                raise ValueError(f"line {first + i}: query_id {f[6]!r} is not text; write a string")
            query = queries.setdefault(f[6], len(queries))
        codes[i] = setting, query
    low, high = np.zeros(numbers.shape[1]), np.ones(numbers.shape[1])
    high[: len(_COUNT_KEYS)] = np.inf
    bad = ~((numbers >= low) & (numbers <= high + 1e-9))
    bad[:, -1] &= ~np.isnan(numbers[:, -1])  # reach may be null
    if bad.any():
        i, column = np.argwhere(bad)[0]
        raise ValueError(
            f"line {first + i}: {_KEYS[7 + column]}={fields[i][7 + column]!r} is outside "
            f"[0, {high[column]:g}]; measures are fractions, counts are not negative"
        )
    return codes, numbers


def _first_fault(lines: Sequence[bytes], first: int) -> ValueError:
    for number, line in enumerate(lines, first):
        try:
            record = json.loads(line)
        except ValueError as error:
            return ValueError(f"line {number} is not JSON ({error}); remove it or run again")
        if not isinstance(record, dict):
            return ValueError(f"line {number} is not a JSON object; remove it or run again")
        record = _FILLED_IN | record
        missing = [key for key in _KEYS if key not in record]
        if missing:
            return ValueError(f"line {number} lacks {missing}; a line needs the keys {list(_KEYS)}")
        for key in (*_COUNT_KEYS, *METRICS):
            value = record[key]
            if not isinstance(value, (int, float)) and not (key == "reach" and value is None):
                return ValueError(f"line {number}: {key}={value!r} is not a number; write one")
    return ValueError(f"lines {first} to {first + len(lines) - 1} are not one object per line")


def _check_setting(setting: tuple[object, ...], line: int) -> None:
    graph, selector, seed, ranking, mode, value = setting
    for name, given, known in (
        ("graph", graph, GRAPHS),
        ("ranking", ranking, RANKINGS),
        ("mode", mode, MODES),
    ):
        if given not in known:
            raise ValueError(f"line {line}: unknown {name} {given!r}; known: {', '.join(known)}")
    reserved = ("none", *GRAPHS)
    if not isinstance(selector, str) or (graph == "refined") == (selector in reserved):
        raise ValueError(
            f"line {line}: selector {selector!r} with graph {graph!r}; a refined graph names its "
            f"selector (not one of {', '.join(reserved)}), the others say 'none'"
        )
    if not isinstance(seed, int) or not isinstance(value, int) or value < 0:
        raise ValueError(
            f"line {line}: seed={seed!r} and value={value!r} must be integers, value at least 0"
        )
    if (graph == "exact") != (mode == "exact"):
        raise ValueError(f"line {line}: mode {mode!r} with graph {graph!r}; exact goes with exact")


def _assemble(
    settings: dict[tuple[object, ...], int],
    queries: dict[object, int],
    codes: NDArray[np.int64],
    numbers: Floats,
    dropped: int,
) -> Results:
    names = [Setting(*key) for key in settings]  # type: ignore[arg-type]
    ids = [str(query_id) for query_id in queries]
    setting_order = sorted(range(len(names)), key=lambda i: names[i])
    query_order = sorted(range(len(ids)), key=lambda i: ids[i])
    shape = (len(names), len(ids))
    rows = np.argsort(setting_order)[codes[:, 0]]
    places = rows * shape[1] + np.argsort(query_order)[codes[:, 1]]
    times = np.bincount(places, minlength=shape[0] * shape[1])
    if times.max() > 1:
        row, query = divmod(int(times.argmax()), shape[1])
        raise ValueError(
            f"{names[setting_order[row]]} has query {ids[query_order[query]]!r} {times.max()} "
            "times; one line each is needed, remove the repeats or run again"
        )
    columns = {}
    for column, name in enumerate((*_COUNT_KEYS, *METRICS)):
        dense = np.full(shape[0] * shape[1], np.nan)
        dense[places] = numbers[:, column]
        columns[name] = dense.reshape(shape)
    return Results(
        query_ids=tuple(ids[i] for i in query_order),
        settings=tuple(names[i] for i in setting_order),
        columns=columns,
        dropped_lines=dropped,
    )
