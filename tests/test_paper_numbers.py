"""The numbers the paper states, kept as data: complete, and consistent with themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NUMBERS = json.loads(
    (Path(__file__).parent.parent / "lgp" / "paper_numbers.json").read_text()
)
KEYS = {"id", "section", "dataset", "index", "setting", "ranking", "metric"}
VALUES = {"vanilla", "lgp", "gain_percent"}


def test_every_entry_says_where_it_stands_and_gives_a_number() -> None:
    assert len({entry["id"] for entry in NUMBERS}) == len(NUMBERS) == 25
    for entry in NUMBERS:
        assert set(entry) >= KEYS and set(entry) <= KEYS | VALUES and set(entry) & VALUES
        assert set(entry["setting"]) <= {"width", "budget"}


def test_stated_gains_follow_from_the_stated_values() -> None:
    both = [e for e in NUMBERS if set(e) >= VALUES]
    assert len(both) == 5
    for entry in both:
        gain = 100 * (entry["lgp"] / entry["vanilla"] - 1)
        assert gain == pytest.approx(entry["gain_percent"], abs=0.05)
