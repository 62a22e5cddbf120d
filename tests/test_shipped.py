"""Answers replayed where the weights are not: the same graph bit for bit, or a plain refusal."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lgp.cli import main
from lgp.refine.log import EditLog

MODES = {
    "likelihood": [],
    "generate": ["llm.mode=generate", "prompt=general", "llm.new_tokens=6"],
    "constrained": ["llm.mode=constrained", "prompt=general"],
}


def words(folder: Path, lm: Path, mode: str) -> list[str]:
    return [
        "refine=llm", f"llm.model={lm}", "refine.when=post", "refine.node_budget=0.1",
        "llm.anchor_tokens=16", "llm.document_tokens=8", "refine.shortlist_size=6",
        "refine.min_coverage_gain=1", "search.widths=[10]", "search.budgets=[]", *MODES[mode],
        f"run_dir={folder / 'run'}", f"store_dir={folder / 'store'}",
    ]  # fmt: skip


def result(folder: Path) -> str:
    return str(EditLog.load(folder / "run" / "edits-llm-0.safetensors").header["result_sha256"])


@pytest.mark.parametrize("mode", MODES)
def test_a_log_replays_without_the_model(
    mode: str, tmp_path: Path, tiny_qwen3: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there, model = tmp_path / "here", tmp_path / "there", tmp_path / "model"
    shutil.copytree(tiny_qwen3, model)
    assert main(words(here, model, mode)) == 0
    shipped = tmp_path / "shipped"
    shutil.copytree(here / "store" / "answers", shipped)
    assert not list(shipped.rglob("*.safetensors")) and not list(shipped.rglob("*.bin"))
    shutil.rmtree(model)
    before = sorted(path.name for path in shipped.glob("*.jsonl"))
    assert main([*words(there, model, mode), f"llm.replay={shipped}"]) == 0
    assert result(there) == result(here)
    assert sorted(path.name for path in shipped.glob("*.jsonl")) == before
    assert not list((there / "store").glob("answers/*.jsonl"))
    capsys.readouterr()
    elsewhere = words(tmp_path / "third", model, mode)
    assert main([*elsewhere, f"llm.replay={shipped}", "llm.document_tokens=9"]) == 2
    assert "lacks an answer that is needed" in capsys.readouterr().err
    assert main([*elsewhere, f"llm.replay={shipped}", "llm.dtype=bfloat16"]) == 2
    assert "holds no answers of llm.model" in capsys.readouterr().err
