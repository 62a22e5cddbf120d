"""Run folders gathered for one page: what each says of itself, a short name, and jobs missing.

In: run folders. Out: `PageRun`s with their comparisons. Names come from what differs between the
runs' configurations. Every text of a file passes `shown`; escaping is left to who writes a format.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lgp.comparison import Row, comparison_table
from lgp.config_refine import refined_label
from lgp.results import ELSEWHERE, ERROR_FILE, QUERIES_FILE, SHARD_FILE, Results
from lgp.store import read_object

PAGE_METRICS = ("ndcg_at_10", "recall_at_10")
AGAIN = "run again or delete it"
_ABSENT = "none"
# Last parts of keys that say nothing without the first.
_PLAIN_KEYS = ("kind", "model", "name", "mode")


@dataclass(frozen=True)
class PageRun:
    """A run as the page shows it.

    Attributes:
        name: unique on the page. folder: relative to the page's root.
        main: the selector whose controls the others are; None where there is none.
        config, summary, versions: the JSON files, empty where missing.
        tables: rows of each (ranking, metric).
    """

    name: str
    folder: str
    path: Path
    main: str | None
    results: Results
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    versions: Mapping[str, Any]
    tables: Mapping[tuple[str, str], Sequence[Row]]

    @property
    def dataset(self) -> str:
        return shown(self.summary.get("dataset", "unknown"))


def shown(value: Any) -> str:
    """A value of a file as one printable line; control characters become U+FFFD."""
    text = " ".join(str(value).split())
    return "".join(x if x.isprintable() else "\ufffd" for x in text)


def page_metrics(metric: str) -> list[str]:
    """The measures a page shows, the asked one first."""
    return list(dict.fromkeys([metric, *PAGE_METRICS]))


def gather(results: Mapping[Path, Results], main: str | None, metric: str) -> list[PageRun]:
    """Read and compare the runs of a page, in order of their folders.

    Args:
        main: the main selector of every run; None takes each run's own, if it has controls.
    Raises:
        ValueError: a JSON file that is none, an unknown metric or selector.
    """
    paths = sorted(results)
    files = {
        path: [read_object(path / f"{x}.json", AGAIN) for x in ("config", "summary", "versions")]
        for path in paths
    }
    root = common_parent(paths) if len(paths) > 1 else paths[0].resolve().parent
    folders = [shown(os.path.relpath(path.resolve(), root)) for path in paths]
    names = run_names(
        [files[p][0] for p in paths],
        [shown(files[p][1].get("dataset", "")) for p in paths],
        folders,
    )
    runs = []
    for path, folder, name in zip(paths, folders, names, strict=True):
        config, summary, versions = files[path]
        own = main if main is not None else _main_of(config, results[path])
        tables = {
            (ranking, x): comparison_table(results[path], x, ranking, own)
            for ranking in results[path].rankings()
            for x in page_metrics(metric)
        }
        runs.append(
            PageRun(name, folder, path, own, results[path], config, summary, versions, tables)
        )
    return runs


def run_names(
    configs: Sequence[Mapping[str, Any]], datasets: Sequence[str], folders: Sequence[str]
) -> list[str]:
    """Name runs by their collections and by the settings that differ; unique in the end.

    Settings of the collection itself are named only where they differ within one collection, and
    the name of the experiment only where nothing else does. A run without configuration goes by
    its folder.
    """
    flat = [dict(_flatten(config)) for config in configs]
    known = [i for i, settings in enumerate(flat) if settings]
    keys = sorted({key for i in known for key in flat[i]})

    def differs(key: str, among: Sequence[int]) -> bool:
        # A key that older runs lack says nothing of them.
        values = [flat[i][key] for i in among if key in flat[i]]
        return len({json.dumps(value, sort_keys=True) for value in values}) > 1

    same = [[i for i in known if datasets[i] == name] for name in dict.fromkeys(datasets)]
    varying = [
        key
        for key in keys
        if key.split(".")[0] not in (*ELSEWHERE, "name")
        and (
            any(differs(key, group) for group in same)
            if key.startswith("dataset.") and all(datasets)
            else differs(key, known)
        )
    ]
    if not varying and len(set(datasets)) < len(datasets) and differs("name", known):
        varying = ["name"]
    last = Counter(key.rsplit(".", 1)[-1] for key in varying)
    several = len(set(datasets)) > 1
    names = []
    for i, settings in enumerate(flat):
        parts = [datasets[i]] if datasets[i] and (several or not varying) else []
        for key in (key for key in varying if key in settings):
            tail = key.rsplit(".", 1)[-1]
            word = tail if last[tail] == 1 and tail not in _PLAIN_KEYS else key
            parts.append(f"{word} {_said(settings[key])}")
        names.append(shown(", ".join(parts)) or folders[i])
    twice = Counter(names)
    return [
        name if twice[name] == 1 else f"{name} ({folder})"
        for name, folder in zip(names, folders, strict=True)
    ]


def missing_jobs(folders: Sequence[Path]) -> list[str]:
    """What sweeps in these folders lack, as sentences: jobs without results or without an end."""
    found: dict[Path, str] = {}
    for folder in folders:
        marked = [p.parent for pattern in ("config.json", ".hydra") for p in folder.rglob(pattern)]
        for job in sorted(set(marked)):
            if (job / SHARD_FILE).is_file():
                continue  # it decided for its shard, and was to do no more
            place = shown(job.relative_to(folder)) if job != folder else shown(folder.name)
            if not (job / QUERIES_FILE).is_file():
                found[job] = f"{place} is missing: it has no {QUERIES_FILE}{_error_of(job)}."
            elif (job / "config.json").is_file() and not (job / "summary.json").is_file():
                found[job] = f"{place} is unfinished: it has no summary.json{_error_of(job)}."
    return list(found.values())


def common_parent(folders: Sequence[Path]) -> Path:
    """The folder that holds all of these.

    Raises:
        ValueError: they have none below the root of the file system.
    """
    try:
        parent = Path(os.path.commonpath([folder.resolve() for folder in folders]))
    except ValueError:
        parent = Path(folders[0].anchor or "/")
    if parent == Path(parent.anchor):
        raise ValueError(
            f"{len(folders)} folders without a common parent below {parent}; name the report's "
            "folder with --out"
        )
    return parent


def _main_of(config: Mapping[str, Any], results: Results) -> str | None:
    refine = config.get("refine")
    if not isinstance(refine, dict) or not refine.get("controls"):
        return None
    own = refined_label(refine.get("method", "lgp"), refine["selector"])
    return own if own in results.labels()[1:] else None


def _flatten(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        return [(prefix, value)]
    return [
        pair
        for key, inner in value.items()
        for pair in _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    ]


def _said(value: Any) -> str:
    if value is None or value == []:
        return _ABSENT
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def _error_of(job: Path) -> str:
    path = job / ERROR_FILE
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else []
    said = [shown(line) for line in lines if line.strip()]
    return f"; it stopped with: {said[-1][:300]}" if said else ""
