"""The numbers that the paper's text states, kept apart from ours: they stand beside, never in a
row with, what was measured here.

In: `paper_numbers.json`, each number with its section and setting. Out: records and a grid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lgp.grids import Grid


def paper_numbers(experiment: str | None = None) -> list[dict[str, Any]]:
    """The entries of a table (`table1`), or all of them."""
    path = Path(__file__).with_name("paper_numbers.json")
    entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    if experiment is None:
        return entries
    number = re.fullmatch(r"table(\d+)(?:_left|_right)?", experiment)
    if number is None:
        return []
    return [e for e in entries if re.search(rf"\bTable {number[1]}\b", e["section"])]


def paper_number_grid(entries: Sequence[Mapping[str, Any]]) -> Grid:
    """The entries as a table."""
    body = []
    for entry in entries:
        setting = " ".join(f"{key} {value}" for key, value in entry["setting"].items())
        gain = entry.get("gain_percent")
        body.append(
            (
                entry["dataset"], setting or "-",
                " ".join(filter(None, (entry["ranking"], entry["metric"]))),
                _said(entry.get("vanilla")), _said(entry.get("lgp")),
                "-" if gain is None else f"{gain:+.1f} %", entry["section"],
            )
        )  # fmt: skip
    return Grid(
        title="What the paper states (its benchmarks, its models)",
        columns=("dataset", "at", "metric", "vanilla", "LGP", "gain", "section"),
        optional=("section",),
        body=tuple(body),
        groups=tuple([0] * len(body)),
    )


def _said(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
