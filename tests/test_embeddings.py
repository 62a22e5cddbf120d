"""Vectors in the store: blocks that survive a kill, processes that share them, stable names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lgp import blocks, embeddings
from lgp.blocks import BlockFiles, Plan, embed_plan, plan_blocks
from lgp.choices import Pooling, Storage
from lgp.config import to_plain
from lgp.data import load_toy
from lgp.embed import HfEncoder, Kind, embed_hf, source_digest
from lgp.embeddings import stored_vectors
from lgp.store import Store, digest_of


def rows_of(batch: Sequence[int]) -> np.ndarray:
    """Some row for each place; the work the tests below count."""
    return np.stack([np.sin(np.arange(1, 6, dtype=np.float32) * (p + 1)) for p in batch])


def plan_of(n: int, embed: object = rows_of) -> Plan:
    """Batches of three, last places first."""
    order = list(range(n))[::-1]
    batches = [order[at : at + 3] for at in range(0, n, 3)]
    return Plan(batches, embed, [10] * n)  # type: ignore[arg-type]


def test_blocks_end_at_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = [5, 5, 5, 5, 90, 1, 1, 1]
    plan = Plan([[0, 1], [2, 3], [4], [5], [6, 7]], rows_of, costs)
    monkeypatch.setattr(blocks, "BLOCK_INPUTS", 3)
    monkeypatch.setattr(blocks, "BLOCK_COST", 80)
    # Two batches make 4 inputs; the third alone costs 90; the others are what is left.
    assert plan_blocks(plan) == [range(0, 2), range(2, 3), range(3, 5)]
    assert plan_blocks(Plan([], rows_of, [])) == []


@pytest.mark.parametrize("inputs", [1, 4, 7, 100])
def test_blocks_join_to_the_rows_of_one_go(
    inputs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_INPUTS", inputs)
    files = BlockFiles(plan_of(20), tmp_path)
    assert files.fill(progress=False) == len(files.blocks)
    np.testing.assert_array_equal(files.join(), rows_of(range(20)))
    np.testing.assert_array_equal(embed_plan(plan_of(20), progress=False), rows_of(range(20)))
    assert BlockFiles(plan_of(20), tmp_path).fill(progress=False) == 0


def test_an_embedding_that_broke_off_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_INPUTS", 6)
    asked: list[int] = []

    def embed(batch: Sequence[int]) -> np.ndarray:
        if len(asked) == 15:  # in the middle of the third block
            asked.append(-1)
            raise RuntimeError("out of power")
        asked.extend(batch)
        return rows_of(batch)

    store, inputs = Store(tmp_path), {"x": 1}

    def get() -> torch.Tensor:
        return embeddings._stored(
            store, inputs, lambda: plan_of(30, embed), Storage.float32, "rows"
        )

    with pytest.raises(RuntimeError, match="out of power"):
        get()
    assert len(list(tmp_path.glob(".vectors-*.part/batches-*.safetensors"))) == 2
    found = get()
    expected = rows_of(range(30))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    # Only the block that broke off was begun anew: its first batch is embedded twice.
    begun_twice = asked[12:15]
    assert sorted(p for p in asked if p >= 0) == sorted([*range(30), *begun_twice])
    assert not list(tmp_path.glob(".vectors-*.part"))
    assert torch.equal(get(), found)
    undisturbed = embeddings._stored(
        Store(tmp_path / "other"), inputs, lambda: plan_of(30), Storage.float32, "rows"
    )
    assert torch.equal(undisturbed, found)


WORKER = """
import sys, time
import numpy as np
from pathlib import Path
from lgp import blocks
blocks.BLOCK_INPUTS = 3
sys.path.insert(0, sys.argv[2])
from test_embeddings import plan_of, rows_of

def embed(batch):
    with open(sys.argv[1] + "/log", "a") as log:
        log.write(f"{batch[0]}\\n")
    time.sleep(0.1)
    return rows_of(batch)

files = blocks.BlockFiles(plan_of(60, embed), Path(sys.argv[1]) / "part")
print("ready", flush=True)
if sys.argv[3] == "wait":
    sys.stdin.readline()
print(files.fill(progress=False), flush=True)
"""


def start(folder: Path, wait: str = "go") -> subprocess.Popen[str]:
    words = [sys.executable, "-c", WORKER, str(folder), str(Path(__file__).parent), wait]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_two_processes_share_the_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_INPUTS", 3)
    workers = [start(tmp_path, "wait") for _ in range(2)]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    counts = [int(worker.communicate(timeout=60)[0]) for worker in workers]
    assert sum(counts) == 20 and min(counts) > 0
    log = (tmp_path / "log").read_text().split()
    assert len(log) == len(set(log)) == 20  # no block twice
    rows = BlockFiles(plan_of(60), tmp_path / "part").join()
    np.testing.assert_array_equal(rows, rows_of(range(60)))


def test_a_killed_process_leaves_its_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_INPUTS", 3)
    worker = start(tmp_path)
    part = tmp_path / "part"
    deadline = time.monotonic() + 60
    while len(list(part.glob("*.safetensors"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    kept = len(list(part.glob("*.safetensors")))
    assert 3 <= kept < 20
    files = BlockFiles(plan_of(60), part)
    assert files.fill(progress=False) == 20 - kept
    np.testing.assert_array_equal(files.join(), rows_of(range(60)))


def test_who_comes_too_late_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_INPUTS", 3)
    assert BlockFiles(plan_of(60), tmp_path, lambda: True).fill(progress=False) == 0


# ---- the stage ----


def test_texts_in_blocks_have_the_bits_of_one_go(
    tiny_qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = load_toy().texts[:50]
    encoder = HfEncoder(str(tiny_qwen3), pooling=Pooling.last, max_tokens=64, batch_tokens=256)
    whole = torch.from_numpy(embed_hf(texts, Kind.DOCUMENT, encoder, "cpu", progress=False))
    monkeypatch.setattr(blocks, "BLOCK_INPUTS", 8)
    found = stored_vectors(Store(tmp_path), [*texts, texts[3]], Kind.DOCUMENT, encoder, "cpu")
    assert torch.equal(found[:50], whole) and torch.equal(found[50], whole[3])
    # The stage is named by what it was named by before there were blocks.
    inputs = {
        "texts": digest_of(texts),
        "kind": "document",
        "encoder": to_plain(asdict(encoder)),
        "weights": source_digest(str(tiny_qwen3)),
    }
    stage = Store(tmp_path).path("vectors", 1, inputs)
    assert [path.name for path in tmp_path.glob("vectors-*")] == [stage.name]
    assert json.loads((stage / "manifest.json").read_text())["files"] == ["vectors.safetensors"]


def test_half_precision_is_stored_and_full_is_used(tiny_qwen3: Path, tmp_path: Path) -> None:
    texts = load_toy().texts[:20]
    encoder = HfEncoder(str(tiny_qwen3), pooling=Pooling.last, max_tokens=64)
    store = Store(tmp_path)
    exact = stored_vectors(store, texts, Kind.DOCUMENT, encoder, "cpu")
    half = stored_vectors(store, texts, Kind.DOCUMENT, encoder, "cpu", Storage.float16)
    kept = {load_file(p / "vectors.safetensors")["vectors"].dtype for p in tmp_path.glob("v*")}
    assert kept == {torch.float32, torch.float16}
    assert half.dtype == torch.float32 and 0 < float((half - exact).abs().max()) < 1e-3
    torch.testing.assert_close(half.norm(dim=1), torch.ones(20), atol=1e-6, rtol=0)


def test_later_processes_of_a_launch_only_embed(tmp_path: Path) -> None:
    words = [
        sys.executable, "-m", "lgp.cli", "dataset=toy", "embedder=wordllama",
        f"store_dir={tmp_path / 'store'}", f"run_dir={tmp_path / 'run'}", "device=cpu",
    ]  # fmt: skip
    if find_spec("wordllama") is None:
        pytest.skip("wordllama missing: see requirements-models.txt")
    ranks = [
        subprocess.Popen(words, env=os.environ | {"RANK": str(rank), "OMP_NUM_THREADS": "1"})
        for rank in (1, 2)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    assert len(list((tmp_path / "store").glob("vectors-*"))) == 2  # documents and queries
    assert not list((tmp_path / "store").glob("graph-*"))
    assert not (tmp_path / "run" / "queries.jsonl").exists()
