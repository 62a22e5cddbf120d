"""A refinement killed at random moments ends with the same bits and pays for no prompt twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lgp.refine.log import EditLog

KILLS = 5


MODES = {
    "likelihood": ["llm.batch_tokens=512"],
    "generate": ["prompt=general", "llm.new_tokens=6", "llm.batch_tokens=2200"],
    "constrained": ["prompt=general", "llm.batch_tokens=2200"],
}


def command(folder: Path, lm: Path, mode: str) -> list[str]:
    return [
        sys.executable, "-m", "lgp.cli", "refine=llm", f"llm.model={lm}", "refine.when=build",
        f"llm.mode={mode}", "llm.anchor_tokens=16", "llm.document_tokens=8",
        "refine.shortlist_size=6", "refine.node_budget=0.5", "search.widths=[10]",
        "search.budgets=[]", *MODES[mode],
        f"run_dir={folder / 'run'}", f"store_dir={folder / 'store'}",
    ]  # fmt: skip


def logged_keys(folder: Path) -> list[str]:
    keys = []
    for segment in sorted((folder / "store" / "answers").glob("*.jsonl")):
        for line in segment.read_text().splitlines():
            try:
                keys += json.loads(line)
            except ValueError:
                continue  # torn by a kill
    return keys


def result(folder: Path) -> str:
    header = EditLog.load(folder / "run" / "edits-llm-0.safetensors").header
    return str(header["result_sha256"])


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_sigkill_loses_nothing(tmp_path: Path, tiny_lm: Path, mode: str) -> None:
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    for folder in (calm, rough):
        folder.mkdir()
    subprocess.run(command(calm, tiny_lm, mode), check=True, capture_output=True)
    total = len(logged_keys(calm))
    draw = random.Random(7)
    stops = sorted(draw.sample(range(1, total - 1), KILLS))
    for stop in stops:
        process = subprocess.Popen(
            command(rough, tiny_lm, mode), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while len(logged_keys(rough)) < stop:
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert 0 < len(logged_keys(rough)) < total
    subprocess.run(command(rough, tiny_lm, mode), check=True, capture_output=True)
    keys = logged_keys(rough)
    assert len(set(keys)) == len(keys) == total  # no logged prompt was asked again
    assert result(rough) == result(calm)
    stores = [sorted((f / "store").glob("refined-*/graph.safetensors")) for f in (calm, rough)]
    assert [p.read_bytes() for p in stores[0]] == [p.read_bytes() for p in stores[1]]
    assert [p for p in (rough / "store").iterdir() if p.is_dir() and p.name.startswith(".")] == []
