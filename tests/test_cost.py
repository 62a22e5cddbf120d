"""Projected and paid tokens, and when they are earned back, against arithmetic by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lgp.cli import main
from lgp.comparison import Row
from lgp.cost import Prices, break_even, cost_sentence, project
from lgp.refine.step import Account
from lgp.summary import break_even_lines, offline_tokens


def row(label: str, value: int, mean: float, n_dist: float) -> Row:
    base = None if label == "vanilla" else "vanilla"
    return Row("width", value, label, base, mean, n_dist, 0.5, None, None)


CURVE = [
    row("vanilla", 10, 0.30, 100),
    row("vanilla", 20, 0.40, 200),
    row("vanilla", 40, 0.50, 400),
]


def test_break_even_by_hand() -> None:
    rows = [*CURVE, row("llm", 10, 0.35, 110), row("llm", 20, 0.40, 210), row("llm", 40, 0.60, 400)]
    narrow, equal, beyond = break_even(rows, "llm", tokens=1_000_000, document_tokens=100)
    # 0.35 lies half-way between widths 10 and 20, and between 100 and 200 distances.
    assert narrow.width == pytest.approx(15) and narrow.n_dist == pytest.approx(150)
    assert narrow.extra_dist == pytest.approx(40)
    assert narrow.queries_rerank == pytest.approx(1_000_000 / (5 * 100))
    assert equal.gain == 0 and equal.width is None and equal.queries_rerank is None
    assert beyond.gain == pytest.approx(0.1) and beyond.width is None


def test_widths_that_exhaust_a_graph_cost_the_same() -> None:
    vanilla = [
        row("vanilla", 10, 0.3, 50),
        row("vanilla", 20, 0.4, 60),
        row("vanilla", 40, 0.5, 60),
    ]
    (found,) = break_even([*vanilla, row("llm", 20, 0.45, 60)], "llm", 1000, 100)
    assert found.width == pytest.approx(30) and found.n_dist == pytest.approx(57.5)


def test_a_projection_scales_calls_tokens_and_time() -> None:
    account = Account(anchors=8, asked=10, tokens=4000, output_tokens=200, seconds=16.0)
    found = project(account, 8, 800)
    assert (found.calls, found.prompt_tokens, found.output_tokens) == (1000, 400_000, 20_000)
    assert found.hours == pytest.approx(1600 / 3600)
    text = found.sentence(Prices(0.5, 2.0, "EUR"))
    assert "about 1000 calls" in text and "0.44 hours at 262 tokens/s, 0.24 EUR" in text
    free = project(Account(anchors=8), 8, 800).sentence(Prices())
    assert free == "800 nodes would be refined, without a language model"


def test_the_account_in_words() -> None:
    account = {
        "asked": 10,
        "replayed": 5,
        "tokens": 4000,
        "output_tokens": 200,
        "seconds": 20.0,
        "anchors": 15,
    }
    text = cost_sentence(account, 25.0, Prices(1.0, None, "EUR"))
    assert "10 prompts asked, 5 replayed, 4000 tokens read and 200 written, 20 s waiting" in text
    assert "(210 tokens/s, 80 % of the stage), 0.00 EUR" in text
    fresh = cost_sentence(account | {"replayed": 0, "anchors": 10}, 25.0, Prices())
    assert "(0.50 nodes/s, 210 tokens/s, 80 % of the stage)" in fresh
    assert cost_sentence(account | {"asked": 0, "replayed": 0}, None, Prices()) == ""


def test_lines_of_a_run_folder(tmp_path: Path) -> None:
    account = {"asked": 3, "replayed": 0, "tokens": 900_000, "output_tokens": 100_000}
    graphs = [{"selector": "none"}, {"selector": "llm", "account": account}]
    (tmp_path / "summary.json").write_text(json.dumps({"graphs": graphs}))
    (tmp_path / "config.json").write_text(json.dumps({"rerank": {"document_tokens": 100}}))
    (line,) = break_even_lines(tmp_path, [*CURVE, row("llm", 10, 0.35, 110)])
    assert "vanilla needs width 15.0, +40 distances a query" in line
    assert "(100 tokens a document) reads as many tokens after 2e+03 queries" in line
    (line,) = break_even_lines(tmp_path, [*CURVE, row("llm", 10, 0.25, 110)])
    assert line.endswith("no better than vanilla, nothing is earned back.")
    (line,) = break_even_lines(tmp_path, [*CURVE, row("llm", 20, 0.41, 500)])
    assert "with 280 distances fewer, nothing is earned back." in line
    assert break_even_lines(tmp_path / "nowhere", CURVE) == []


@pytest.mark.parametrize(
    ("account", "tokens"),
    [
        ({"asked": 2, "replayed": 3, "tokens": 10, "output_tokens": 4, "used_tokens": 35}, 35),
        ({"asked": 0, "replayed": 0, "tokens": 0, "output_tokens": 0, "used_tokens": 0}, None),
        ({"asked": 2, "replayed": 0, "tokens": 10, "output_tokens": 4}, 14),  # an older run's
        ({"asked": 2, "replayed": 3, "tokens": 10, "output_tokens": 4}, None),
    ],
)
def test_what_decisions_cost_counts_replayed_answers(
    account: dict[str, int], tokens: int | None
) -> None:
    assert offline_tokens(account) == tokens


def test_a_dry_run_prints_the_projection_and_leaves_no_results(
    tmp_path: Path, tiny_lm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--dry-run", "refine=llm", f"llm.model={tiny_lm}", "llm.prompt_price=1", "llm.currency=EUR",
        f"run_dir={tmp_path / 'run'}", f"store_dir={tmp_path / 'store'}", "refine.node_budget=0.5",
    ]  # fmt: skip
    assert main(words) == 0
    text = capsys.readouterr().out
    assert (
        "nodes would be asked about" in text and "EUR" in text and "scaled up from 8 nodes" in text
    )
    assert not (tmp_path / "run" / "queries.jsonl").exists()
    assert not list((tmp_path / "store").glob("answers/*"))
