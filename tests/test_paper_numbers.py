"""The numbers the paper states, kept as data: complete, and consistent with themselves."""

from __future__ import annotations

import pytest

from lgp.paper_numbers import paper_number_grid, paper_numbers

NUMBERS = paper_numbers()
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


def test_a_tables_numbers_are_found_by_its_section() -> None:
    assert {e["id"].split("_")[0] for e in paper_numbers("table1")} == {"table1"}
    assert {e["id"] for e in paper_numbers("table4")} >= {"budget_economics"}
    assert paper_numbers("table7_left") == paper_numbers("fig3") == []
    grid = paper_number_grid(paper_numbers("table1"))
    assert ("17.12", "21.3", "+24.4 %") in [row[3:6] for row in grid.body]
