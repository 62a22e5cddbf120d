"""The figure of gain against tokens: its lines, their looks, and the files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lgp.cells import Cell
from lgp.config_tables import TableConfig
from lgp.stats import compare_arrays
from lgp.token_curves import COLORS, draw_tokens, line_looks, token_lines

TABLE = TableConfig(
    rows=["benchmark", "refine.node_order", "refine.node_budget", "tokens"], columns=["effort"]
)


def a_cell(way: str, order: str, beta: str, tokens: str, gain: float) -> Cell:
    base = np.array([[0.2], [0.3], [0.1], [0.4]])
    (comparison,) = compare_arrays([(base, base + gain)])
    return Cell((way, order, beta, tokens), ("width 20",), "vanilla", "repair", True, comparison,
                1.0, 100.0, 100.0, None, 1)  # fmt: skip


CELLS = [
    a_cell("titles", "random", "1.0", "0.0", 0.02),
    a_cell("written", "random", "0.5", "245.1", 0.01),
    a_cell("written", "random", "1.0", "491.0", 0.03),
    a_cell("written", "traffic", "0.5", "240.0", 0.02),
    a_cell("lgp", "traffic", "0.28", "607.0", 0.0),
]
CONTROL = replace(CELLS[1], label="uniform", is_main=False)
AGAINST_CONTROL = replace(CELLS[1], base="uniform")


def test_a_line_is_what_differs_in_nothing_but_its_tokens() -> None:
    lines = token_lines([*CELLS, CONTROL, AGAINST_CONTROL], TABLE)
    assert lines == {
        ("titles", "random"): CELLS[:1],
        ("written", "random"): CELLS[1:3],
        ("written", "traffic"): CELLS[3:4],
        ("lgp", "traffic"): CELLS[4:],
    }


def test_a_way_keeps_its_colour_and_an_order_its_marker() -> None:
    looks = line_looks(list(token_lines(CELLS, TABLE)))
    assert len(set(looks.values())) == len(looks)
    assert looks["written", "random"][0] == looks["written", "traffic"][0]
    assert looks["written", "traffic"][1] == looks["lgp", "traffic"][1]
    assert len({color for color, _ in looks.values()}) == 3


def test_the_files(tmp_path: Path) -> None:
    for stem in ("one", "two"):
        draw_tokens(CELLS, TABLE, tmp_path / stem)
    svg = (tmp_path / "one.svg").read_text()
    assert svg == (tmp_path / "two.svg").read_text()
    assert [color.lower() in svg for color in COLORS[:4]] == [True, True, True, False]
    assert (tmp_path / "one.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("cells", "rows"), [([], TABLE.rows), ([CONTROL], TABLE.rows), (CELLS, ["benchmark"])]
)
def test_nothing_to_draw_is_told(cells: list[Cell], rows: list[str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"table\.rows.*add tokens to table\.rows"):
        draw_tokens(cells, replace(TABLE, rows=rows), tmp_path / "x")
    assert not list(tmp_path.iterdir())
