"""Sharded decisions, merged, give the graph of a single process bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lgp import stopping
from lgp.answers import AnswerLog
from lgp.ask import ask_all
from lgp.choices import BrightTask, MbeirTask, SelectorKind
from lgp.cli import compose, config_dir, main
from lgp.config import ConfigError
from lgp.jobs import ranges, read_jobs
from lgp.pipeline import finished, run
from lgp.refine import post
from lgp.refine.log import EditLog
from lgp.shards import shard_blocks
from lgp.stages import Stages

K = 3
SMALL = [
    "dataset.topics=2", "refine.when=post", "search.widths=[10]", "search.budgets=[]",
    "refine.min_coverage_gain=1",
]  # fmt: skip
INDICES = {
    "diskann": ["index=diskann", "index.max_degree=6"],
    "hnsw": ["index=hnsw", "index.connectivity=3"],
}
TINY = ["llm.anchor_tokens=16", "llm.document_tokens=8", "refine.shortlist_size=6"]
SELECTORS = {
    "uniform": [],
    "farthest": [],
    "encoder": ["refine.encoder_tokens=48"],
    "likelihood": ["refine=llm", "llm.mode=likelihood", "llm.batch_tokens=512", *TINY],
    "constrained": ["refine=llm", "llm.mode=constrained", "prompt=general",
                    "llm.batch_tokens=2200", *TINY],
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "BLOCK_ANCHORS", 8)


def words(folder: Path, selector: str, tiny_lm: Path, tiny_encoder: Path) -> list[str]:
    own = [f"refine={selector}"] if selector in SelectorKind.__members__ else []
    models = [f"llm.model={tiny_lm}", f"refine.encoder={tiny_encoder}"]
    return [*SMALL, *own, *SELECTORS[selector], *models, f"store_dir={folder}"]


def log_of(folder: Path) -> EditLog:
    [path] = folder.glob("*refined-*/edits.safetensors")
    return EditLog.load(path)


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize(
    "selector",
    [
        pytest.param(s, marks=[pytest.mark.slow] if "refine=llm" in w else [])
        for s, w in SELECTORS.items()
    ],
)
def test_the_merged_graph_is_that_of_a_single_process(
    tmp_path: Path, tiny_lm: Path, tiny_encoder: Path, selector: str, index: str
) -> None:
    def stages(folder: str, *more: str) -> Stages:
        own = words(tmp_path / folder, selector, tiny_lm, tiny_encoder)
        return Stages(compose([*INDICES[index], *own, *more]))

    alone = stages("alone")
    kind = alone.config.refine.selector
    _, stage = alone.refined(kind, 0, None)
    merge = stages("split", f"refine.shards={K}")
    with pytest.raises(ValueError, match="3 of 3 shards have not decided yet: 0, 1, 2"):
        merge.refined(kind, 0, None)
    for shard in (2, 0):
        stages("split", f"refine.shards={K}", f"refine.shard={shard}").decided(kind, 0, None)
    with pytest.raises(ValueError, match=r"1 of 3 shards .*: 1; run .*refine\.shard=1, then"):
        merge.refined(kind, 0, None)
    stages("split", f"refine.shards={K}", "refine.shard=1").decided(kind, 0, None)
    _, other = merge.refined(kind, 0, None)
    assert other.name == stage.name  # one stage, however it was made
    for name in ("graph.safetensors", "edits.safetensors"):
        assert (other / name).read_bytes() == (stage / name).read_bytes()
    before, after = (json.loads((s / "manifest.json").read_text())["facts"] for s in (stage, other))
    assert before["n_edits"] == after["n_edits"] > 20
    for count in ("anchors", "chosen", "none", "unreadable", "picked"):
        assert before["account"][count] == after["account"][count]
    if selector == "constrained":  # documents' priors under likelihood are asked by several shards
        assert before["account"]["asked"] == after["account"]["asked"] == 40
    assert (other / "latent_queries.jsonl").is_file() == (selector == "constrained")


def test_controls_and_a_match_are_those_of_a_single_process(
    tmp_path: Path, tiny_lm: Path, tiny_encoder: Path
) -> None:
    base = [*SMALL, *INDICES["diskann"], "refine.node_budget=0.7"]
    controlled = [*base, "refine=farthest", "refine.controls=[uniform,nearest]"]
    matched = [*base, "refine=uniform"]

    def go(folder: str, words: list[str], out: str, *more: str) -> list[bytes]:
        config = compose([*words, f"store_dir={tmp_path / folder}", *more])
        run(config, tmp_path / folder / out, quiet=True)
        made = sorted((tmp_path / folder / out).glob("edits-*"))
        return [path.read_bytes() for path in made]

    single = go("alone", controlled, "out")
    log = f"refine.match={tmp_path / 'alone' / 'out' / 'edits-farthest-0.safetensors'}"
    single += go("alone", matched, "matched", log)
    split = []
    for words, out, more in ((controlled, "out", []), (matched, "matched", [log])):
        for shard in range(2):
            none = go("split", words, f"{shard}", "refine.shards=2", f"refine.shard={shard}", *more)
            assert none == []
        split += go("split", words, out, "refine.shards=2", *more)
    assert len(single) == 4 and split == single


def test_a_shard_is_finished_while_its_decisions_are_there(tmp_path: Path) -> None:
    one = ["refine=uniform", f"store_dir={tmp_path / 's'}", "refine.shards=2", "refine.shard=1"]
    config = compose([*SMALL, *one])
    assert not finished(config, tmp_path / "out")
    run(config, tmp_path / "out")
    assert finished(config, tmp_path / "out")
    [stage] = (tmp_path / "s").glob("decisions-*")
    assert EditLog.load(stage / "decisions.safetensors").header["shard"] == 1
    (stage / "manifest.json").unlink()
    assert not finished(config, tmp_path / "out")


def test_shards_part_the_blocks() -> None:
    blocks = post.anchor_blocks(torch.arange(3, 75), 1000)
    assert [len(block) for block in blocks] == [8] * 9
    split = [shard_blocks(blocks, shard, 4) for shard in range(4)]
    assert [len(own) for own in split] == [3, 2, 2, 2]
    asked = torch.cat([block for own in split for block in own])
    assert asked.sort().values.tolist() == list(range(3, 75))
    assert shard_blocks(blocks, 9, 10) == []


def test_blocks_of_a_huge_graph_fit_into_memory() -> None:
    [first, *_] = post.anchor_blocks(torch.arange(100), 40_000_000)  # 4 * 4 * 40 M bytes a node
    assert len(first) == 1


def test_shards_decided_elsewhere_are_checked(tmp_path: Path) -> None:
    one = [*SMALL, "refine=uniform", f"store_dir={tmp_path}", "refine.shards=1"]
    stages = Stages(compose([*one[:-1], "refine.shards=2"]))
    for shard in range(2):
        Stages(compose([*one[:-1], "refine.shards=2", f"refine.shard={shard}"])).decided(
            SelectorKind.uniform, 0, None
        )
    path = sorted(tmp_path.glob("decisions-*"))[0] / "decisions.safetensors"
    log = EditLog.load(path)
    log.decisions.placed[0] += 1
    log.save(path)
    with pytest.raises(ValueError, match="gave other placed than the shards saw"):
        stages.refined(SelectorKind.uniform, 0, None)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("refine.shards=4 refine.when=build", ["refine.when=build", "refine.when=post", "openai"]),
        ("refine.shards=4 refine.batch_size=8", ["refine.batch_size=8", "refine.batch_size=0"]),
        ("refine.shards=4 refine.shard=4", ["refine.shard=4", "0..refine.shards-1=3"]),
        ("refine.shard=0 refine.batch_size=8", ["refine.batch_size=8"]),
        ("refine.shards=0", ["refine.shards=0", "below 1"]),
        ("refine.shards=2 refine=none", ["refine.selector=none", "name a selector"]),
    ],
)
def test_impossible_shards_name_value_bound_and_way_out(override: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        compose(["refine.when=post", *override.split()])
    for part in parts:
        assert part in str(error.value)


# --- SIGUSR1 ------------------------------------------------------------------------------------


def test_a_signal_stops_after_the_batch_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "_asked", False)
    before = signal.getsignal(signal.SIGUSR1)
    keys, asked = [f"k{at}" for at in range(9)], []

    def ask(places: list[int]) -> list[str]:
        asked.extend(places)
        if len(asked) == 4:
            os.kill(os.getpid(), signal.SIGUSR1)
        return [f"answer {at}" for at in places]

    def go() -> list[str]:
        return ask_all(AnswerLog(tmp_path), keys, [5] * 9, 10, ask, "test").answers

    try:
        stopping.listen()
        with pytest.raises(SystemExit) as stop:
            go()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stop.value.code == stopping.EX_REQUEUE == 85
    assert len(asked) == 4 and len(AnswerLog(tmp_path)) == 4  # the batch in flight is kept
    monkeypatch.setattr(stopping, "_asked", False)
    assert go() == [f"answer {at}" for at in range(9)]
    assert sorted(asked) == list(range(9))  # and never asked again


@pytest.mark.slow
def test_a_signalled_run_goes_on_with_the_same_bits(tmp_path: Path, tiny_lm: Path) -> None:
    def words(folder: str) -> list[str]:
        own = [f"llm.model={tiny_lm}", *SELECTORS["constrained"], *INDICES["diskann"]]
        places = [f"store_dir={tmp_path / folder}", f"run_dir={tmp_path / folder / 'out'}"]
        return [sys.executable, "-m", "lgp.cli", *SMALL, *own, *places]

    def logged(folder: str) -> list[str]:
        lines = [p.read_text() for p in sorted((tmp_path / folder / "answers").glob("*.jsonl"))]
        return [key for text in lines for line in text.splitlines() for key in json.loads(line)]

    subprocess.run(words("calm"), check=True, capture_output=True)
    process = subprocess.Popen(words("rough"), stderr=subprocess.DEVNULL)
    while len(logged("rough")) < 20:
        assert process.poll() is None, "the run ended before it could be signalled"
        time.sleep(0.002)
    process.send_signal(signal.SIGUSR1)
    assert process.wait() == stopping.EX_REQUEUE
    assert 0 < len(logged("rough")) < len(logged("calm"))
    subprocess.run(words("rough"), check=True, capture_output=True)
    assert sorted(logged("rough")) == sorted(logged("calm"))
    assert len(set(logged("rough"))) == len(logged("rough"))
    assert [
        p for p in (tmp_path / "rough").iterdir() if p.name.startswith(".") and p.is_dir()
    ] == []
    results = [log_of(tmp_path / f).header["result_sha256"] for f in ("calm", "rough")]
    assert results[0] == results[1]


# --- files of jobs ------------------------------------------------------------------------------


def test_ranges_are_as_sbatch_reads_them() -> None:
    assert ranges([]) == "" and ranges([4]) == "4" and ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


def test_jobs_are_lines_without_comments(tmp_path: Path) -> None:
    file = tmp_path / "f.txt"
    file.write_text("# all of it\n\nrefine=uniform # one\n  'refine.controls=[first, nearest]' \n")
    jobs = read_jobs(file)
    assert [(job.number, job.line) for job in jobs] == [(0, 3), (1, 4)]
    assert [job.words() for job in jobs] == [
        ["refine=uniform"], ["refine.controls=[first, nearest]"],
    ]  # fmt: skip
    file.write_text("# nothing\n")
    with pytest.raises(ValueError, match="has no job"):
        read_jobs(file)


@pytest.mark.parametrize(
    ("name", "tasks", "more"),
    [
        ("bright", BrightTask, []),
        ("mbeir", MbeirTask, ["dataset.path=FOLDER", "dataset.images=FOLDER"]),
    ],
)
def test_the_benchmarks_files_name_every_task_once(
    name: str, tasks: type[BrightTask] | type[MbeirTask], more: list[str]
) -> None:
    file = Path(config_dir()).parent / "slurm" / "overrides" / f"{name}.txt"
    configs = [compose([*job.words(), *more]) for job in read_jobs(file)]
    assert sorted(c.dataset.task for c in configs) == sorted(task.value for task in tasks)
    assert {c.rerank.kind.value for c in configs} == {"listwise"}
    assert {c.refine.shortlist_size for c in configs} == {12 if name == "mbeir" else 24}


def test_listing_and_running_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "f.txt", tmp_path / "out"
    common = [f"run_dir={out}", f"store_dir={tmp_path / 's'}", *SMALL]
    missing = f"dataset=beir dataset.path={tmp_path / 'nowhere'} refine=uniform"
    file.write_text(f"refine=uniform\n{missing}\nrefine=nearest\n")
    assert main(["jobs", str(file), "--missing", *common]) == 0
    assert capsys.readouterr().out == "0-2\n"
    assert main(["jobs", str(file), "--run", "0", *common]) == 0
    first = (out / "0" / "queries.jsonl").stat().st_mtime_ns
    assert main(["jobs", str(file), "--run", "1", *common]) == 1
    assert main(["jobs", str(file), "--run", "0", *common]) == 0
    assert (out / "0" / "queries.jsonl").stat().st_mtime_ns == first  # it was finished
    capsys.readouterr()
    assert main(["jobs", str(file), *common]) == 1
    listed = capsys.readouterr().out.splitlines()
    assert "finished" in listed[0] and "nowhere" in listed[1] and "failed: " in listed[1]
    assert "missing" in listed[2]
    file.write_text("refine=uniform\nrefine.edit_bugdet=1\nrefine.edit_budget=1,2\n")
    assert main(["jobs", str(file), *common]) == 2
    said = capsys.readouterr()
    assert "f.txt:2 (job 1)" in said.err and "edit_bugdet" in said.err
    assert "f.txt:3 (job 2)" in said.err  # a sweep is no job
    assert [line.split()[1] for line in said.out.splitlines()] == ["finished", "broken", "broken"]
    assert main(["jobs", str(file), "--missing", *common]) == 2
    assert main(["jobs", str(file), "--run", "3", *common]) == 2
    assert "--run 3 is outside 0..2" in capsys.readouterr().err


def test_a_slurm_launcher_without_its_plugin_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lgp.cli.find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    assert main(["-m", "hydra/launcher=slurm", "refine=uniform"]) == 2
    assert "pip install 'lgp[slurm]'" in capsys.readouterr().err
