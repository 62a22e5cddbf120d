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
from typing import Any

import pytest

from lgp.refine.log import EditLog

MODES = {
    "likelihood": ["llm.batch_tokens=512"],
    "generate": ["prompt=general", "llm.new_tokens=6", "llm.batch_tokens=2200"],
    "constrained": ["prompt=general", "llm.batch_tokens=2200"],
}
KILLS = {"likelihood": 10, "generate": 10, "constrained": 3}
NODE_BUDGET = 200.1 / 240
"""200 of the toy collection's 240 nodes."""


def command(folder: Path, lm: Path, mode: str) -> list[str]:
    return [
        sys.executable, "-m", "lgp.cli", "refine=llm", f"llm.model={lm}", "refine.when=build",
        f"llm.mode={mode}", "llm.anchor_tokens=16", "llm.document_tokens=8",
        "refine.shortlist_size=6", f"refine.node_budget={NODE_BUDGET}", "search.widths=[10]",
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
    stops = sorted(draw.sample(range(1, total - 1), KILLS[mode]))
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


# A post-build refinement by a tiny model: words are the model, the log folder, the half of the
# nodes (0, 1, or "all") and the folder where both halves wait for each other.
HALF = r"""
import json, sys, time
from pathlib import Path
import torch
from lgp.answers import AnswerLog
from lgp.choices import LlmMode
from lgp.config_llm import PromptConfig
from lgp.data import load_toy
from lgp.distance import Metric
from lgp.generate import LocalEngine
from lgp.llm import load_language_model
from lgp.points import make_points
from lgp.refine.listwise import Listwise, ListwiseSettings
from lgp.refine.post import refine_post
from lgp.refine.step import Refiner, StepSettings
from lgp.vamana import VamanaSettings, build_vamana

model, log, half, meeting = sys.argv[1:]
n = 48
vectors = torch.randn(n, 8, generator=torch.Generator().manual_seed(3))
points = make_points(torch.nn.functional.normalize(vectors, dim=1), Metric.cosine, 2**20)
base = build_vamana(points, VamanaSettings(max_degree=6, construction_width=12))
prompt = PromptConfig(
    selection_system="At most {B}.", selection_user="{anchor}\n{keep_block}\n{cand_block}\n"
)


class Readable(LocalEngine):  # random weights write no identifiers: some stand for what they write
    def generate(self, prompts):
        return [a | {"text": f"[{1 + len(a['text']) % 5}]"} for a in super().generate(prompts)]


engine = Readable(load_language_model(model), batch_tokens=900, new_tokens=8)
selector = Listwise(
    engine, load_toy().texts[:n], prompt, ListwiseSettings(LlmMode.generate, 12, 8),
    AnswerLog(Path(log)),
)
eligible = torch.ones(n, dtype=torch.bool) if half == "all" else torch.arange(n) % 2 == int(half)
if half != "all":
    (Path(meeting) / half).touch()
    while len(list(Path(meeting).iterdir())) < 2:
        time.sleep(0.01)
refiner = Refiner(points, selector, StepSettings(edit_budget=2, shortlist_size=5), eligible)
graph, edits = refine_post(base, points, refiner, 12)
print(json.dumps({
    "graph": graph.digest(), "answers": selector.answers.digest(selector.keys_used),
    "edits": len(edits.node), "asked": refiner.account.asked, "replayed": refiner.account.replayed,
}))
"""


@pytest.mark.slow
def test_two_processes_share_a_log_and_a_third_replays_it(tmp_path: Path, tiny_lm: Path) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()

    def start(log: str, half: str) -> subprocess.Popen[str]:
        words = [str(tiny_lm), str(tmp_path / log), half, str(meeting)]
        return subprocess.Popen(
            [sys.executable, "-c", HALF, *words], stdout=subprocess.PIPE, text=True
        )

    def end(process: subprocess.Popen[str]) -> dict[str, Any]:
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    halves = [start("shared", "0"), start("shared", "1")]
    asked = [end(process)["asked"] for process in halves]
    segments = sorted((tmp_path / "shared").glob("*.jsonl"))
    assert len(segments) == 2 and min(asked) > 10
    third, alone = end(start("shared", "all")), end(start("alone", "all"))
    assert (third["asked"], third["replayed"]) == (0, sum(asked))
    assert (alone["asked"], alone["replayed"]) == (sum(asked), 0)
    assert alone["edits"] > 10
    assert third["graph"] == alone["graph"] and third["answers"] == alone["answers"]
    assert sorted((tmp_path / "shared").glob("*.jsonl")) == segments  # replaying writes nothing
