"""Sweeps on a real, private SLURM: multirun and array alike, failures, requeues, shards."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_server import Slurm, start, stop, unavailable

from lgp.refine.log import EditLog

pytestmark = pytest.mark.slurm

SCRIPTS = Path(__file__).parent.parent / "slurm"
SMALL = [
    "dataset.topics=4", "refine.min_coverage_gain=1", "search.widths=[10]", "search.budgets=[]",
    "index.max_degree=6",
]  # fmt: skip
LLM = [
    "refine=llm", "refine.when=post", "llm.mode=constrained", "prompt=general",
    "llm.batch_tokens=600", "llm.anchor_tokens=8", "llm.document_tokens=4",
    "refine.shortlist_size=4",
]  # fmt: skip
RESOURCES = ["--cpus-per-task=1", "--mem=900", "--time=20", "--gpus-per-node=0"]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if reason := unavailable():
        pytest.skip(reason)
    server = start()
    yield server
    stop(server)


def submit(
    slurm: Slurm, file: Path, run_dir: Path, *words: str, options: tuple[str, ...] = ()
) -> str:
    """Submit a file's unfinished jobs; the number of the SLURM job."""
    command = [SCRIPTS / "submit.sh", file, "--parsable", *RESOURCES, *options, "--", *words]
    return slurm.run(*command, RUN_DIR=str(run_dir)).strip()


def status(run_dir: Path, task: int) -> dict[str, str]:
    line = (run_dir / "status" / str(task)).read_text()
    return dict(word.partition("=")[::2] for word in line.split())


def listed(slurm: Slurm, file: Path, *words: str) -> list[str]:
    """The state of each job as `lgp jobs` says it."""
    out = subprocess.run(
        ["lgp", "jobs", file, *words], env=dict(slurm.environment), capture_output=True, text=True
    ).stdout
    return [line[5:].split(":")[0].split()[0] for line in out.splitlines()]


def write_beir(folder: Path) -> None:
    """A small collection in BEIR layout."""
    (folder / "qrels").mkdir(parents=True)
    words = ["odd" if n % 2 else "even" for n in range(60)]
    texts = [f"{word} number {n} {'big' if n > 30 else ''}" for n, word in enumerate(words)]
    lines = [
        json.dumps({"_id": f"d{n}", "title": "", "text": text}) for n, text in enumerate(texts)
    ]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "odd number 4"}) + "\n")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td4\t1\n")


def test_an_array_and_a_multirun_give_the_same(slurm: Slurm, tmp_path: Path) -> None:
    jobs = [
        f"refine={selector} refine.edit_budget={budget} refine.when={when}"
        for selector in ("farthest", "uniform")
        for budget in (1, 2, 3)
        for when in ("build", "post")
    ]  # fmt: skip
    file, array, multirun = tmp_path / "sweep.txt", tmp_path / "array", tmp_path / "multirun"
    file.write_text("# twelve\n" + "".join(f"{line}\n" for line in jobs))
    job = submit(slurm, file, array, *SMALL, f"store_dir={tmp_path / 'a'}")
    launcher = {"cpus_per_task": "1", "mem_gb": "null", "timeout_min": "20"}
    slurm.run(
        "lgp", "-m", "hydra/launcher=slurm_cpu", "refine=farthest,uniform",
        "refine.edit_budget=1,2,3", "refine.when=build,post", *SMALL, f"run_dir={multirun}",
        f"store_dir={tmp_path / 'm'}", "hydra.launcher.stderr_to_stdout=true",
        *(f"hydra.launcher.{key}={value}" for key, value in launcher.items()), timeout=600,
    )  # fmt: skip
    assert set(slurm.wait(job, 300).values()) == {"COMPLETED"}
    for number in range(12):
        a, m = array / str(number), multirun / str(number)
        assert (a / "queries.jsonl").read_bytes() == (m / "queries.jsonl").read_bytes()
        assert status(array, number)["state"] == "finished"
    assert listed(slurm, file, *SMALL, f"run_dir={array}", f"store_dir={tmp_path / 'a'}") == [
        "finished"
    ] * 12  # fmt: skip
    tables = [slurm.run("lgp", "report", d, COLUMNS="200") for d in (array, multirun)]
    assert "refine" in tables[0] or "uniform" in tables[0]
    assert tables[0].replace(str(array), "DIR") == tables[1].replace(str(multirun), "DIR")


def test_failed_and_cancelled_tasks_are_listed_and_run_again_alone(
    slurm: Slurm, tmp_path: Path
) -> None:
    late = tmp_path / "late"
    file, out = tmp_path / "some.txt", tmp_path / "out"
    file.write_text(
        f"refine=uniform\ndataset=beir dataset.path={late} refine=uniform\n"
        "refine=farthest\nrefine=nearest\n"
    )
    words = [*SMALL, f"store_dir={tmp_path / 'store'}"]
    first = submit(slurm, file, out, *words)
    while slurm.states(first)["2"] == "PENDING" or not (out / "status" / "2").is_file():
        time.sleep(0.1)
    slurm.run("scancel", f"{first}_2")
    states = slurm.wait(first)
    assert [states[task] for task in "0123"] == ["COMPLETED", "FAILED", "CANCELLED", "COMPLETED"]
    assert [status(out, n)["state"] for n in range(4)] == [
        "finished", "failed", "cancelled", "finished",
    ]  # fmt: skip
    assert status(out, 1)["exit"] == "1" and status(out, 0)["host"]
    assert listed(slurm, file, *words, f"run_dir={out}") == [
        "finished", "failed", "missing", "finished",
    ]  # fmt: skip
    assert str(late) in (out / "1" / "error.txt").read_text()
    kept = {n: (out / n / "queries.jsonl").stat().st_mtime_ns for n in "03"}
    write_beir(late)
    second = submit(slurm, file, out, *words)
    assert slurm.wait(second) == {"1": "COMPLETED", "2": "COMPLETED"}  # those and no other
    assert {n: (out / n / "queries.jsonl").stat().st_mtime_ns for n in "03"} == kept
    assert [status(out, n)["job"] for n in range(4)] == [
        f"{first}_0", f"{second}_1", f"{second}_2", f"{first}_3",
    ]  # fmt: skip
    assert listed(slurm, file, *words, f"run_dir={out}") == ["finished"] * 4
    assert submit(slurm, file, out, *words) == ""  # nothing is left to submit


def logged_keys(store: Path) -> list[str]:
    segments = sorted((store / "answers").glob("*.jsonl"))
    return [k for p in segments for line in p.read_text().splitlines() for k in json.loads(line)]


def result(run_dir: Path) -> str:
    return str(EditLog.load(run_dir / "edits-llm-0.safetensors").header["result_sha256"])


def test_a_signalled_task_is_requeued_and_goes_on(
    slurm: Slurm, tmp_path: Path, tiny_lm: Path
) -> None:
    file = tmp_path / "one.txt"
    file.write_text(" ".join([*LLM, f"llm.model={tiny_lm}"]))
    words = [*SMALL, "dataset.topics=8"]
    calm = submit(slurm, file, tmp_path / "calm", *words, f"store_dir={tmp_path / 'c'}")
    rough = submit(slurm, file, tmp_path / "rough", *words, f"store_dir={tmp_path / 'r'}")
    while len(logged_keys(tmp_path / "r")) < 20:
        assert slurm.states(rough)["0"] in ("PENDING", "RUNNING", "CONFIGURING")
        time.sleep(0.01)
    slurm.run("scancel", "--signal=USR1", "--batch", f"{rough}_0")
    while status(tmp_path / "rough", 0)["state"] != "requeued":
        assert status(tmp_path / "rough", 0)["state"] == "running"
        time.sleep(0.05)
    assert status(tmp_path / "rough", 0)["exit"] == "85"
    between = logged_keys(tmp_path / "r")
    assert slurm.wait(rough) == slurm.wait(calm) == {"0": "COMPLETED"}
    assert status(tmp_path / "rough", 0)["requeues"] == "1"
    keys = logged_keys(tmp_path / "r")
    assert 20 <= len(between) < len(keys) and keys[: len(between)] != []
    assert len(set(keys)) == len(keys)  # no prompt was asked twice
    assert sorted(keys) == sorted(logged_keys(tmp_path / "c"))
    assert result(tmp_path / "rough" / "0") == result(tmp_path / "calm" / "0")


def test_four_shards_and_a_merge_are_a_single_process(
    slurm: Slurm, tmp_path: Path, tiny_lm: Path
) -> None:
    one = " ".join([*LLM, f"llm.model={tiny_lm}"])
    shards, merge = tmp_path / "shards.txt", tmp_path / "merge.txt"
    shards.write_text("".join(f"{one} refine.shards=4 refine.shard={k}\n" for k in range(4)))
    merge.write_text(f"{one}\n")
    # 3 whole blocks of 256 nodes and a piece of one: each shard has nodes to ask about.
    words = [*SMALL, "dataset.topics=39"]
    split, alone = f"store_dir={tmp_path / 's'}", f"store_dir={tmp_path / 'a'}"
    first = submit(slurm, shards, tmp_path / "shards", *words, split)
    after = submit(
        slurm, merge, tmp_path / "merged", *words, split, "refine.shards=4",
        options=(f"--dependency=afterok:{first}",),
    )  # fmt: skip
    single = submit(slurm, merge, tmp_path / "single", *words, alone)
    assert set(slurm.wait(first, 300).values()) == {"COMPLETED"}
    assert slurm.wait(after) == slurm.wait(single, 300) == {"0": "COMPLETED"}
    assert len(list((tmp_path / "s").glob("decisions-*"))) == 4
    assert len(list((tmp_path / "s" / "answers").glob("*.jsonl"))) == 4  # the merge asked nothing
    assert result(tmp_path / "merged" / "0") == result(tmp_path / "single" / "0")
    graphs = [(tmp_path / s).glob("refined-*/graph.safetensors") for s in "sa"]
    assert len({path.read_bytes() for paths in graphs for path in paths}) == 1
    queries = [(tmp_path / d / "0" / "queries.jsonl").read_bytes() for d in ("merged", "single")]
    assert queries[0] == queries[1]


def test_a_broken_line_is_told_and_hurts_no_other(slurm: Slurm, tmp_path: Path) -> None:
    file, out = tmp_path / "broken.txt", tmp_path / "out"
    file.write_text("refine=uniform\nrefine.edit_bugdet=1\n")
    words = [*SMALL, f"store_dir={tmp_path / 'store'}"]
    before = slurm.run("squeue", "-h", "-t", "all", "-o", "%i")
    with pytest.raises(subprocess.CalledProcessError) as error:
        submit(slurm, file, out, *words)
    assert f"{file}:2 (job 1)" in error.value.stderr and "edit_bugdet" in error.value.stderr
    assert slurm.run("squeue", "-h", "-t", "all", "-o", "%i") == before  # nothing was submitted
    log = f"--output={tmp_path}/%a.log"
    command = ["sbatch", "--parsable", "--array=0-1", *RESOURCES, log, SCRIPTS / "array.sh"]
    job = slurm.run(*command, file, out, *words).strip()
    assert slurm.wait(job) == {"0": "COMPLETED", "1": "FAILED"}
    assert [status(out, n)["state"] for n in (0, 1)] == ["finished", "failed"]
    assert status(out, 1)["exit"] == "2" and "edit_bugdet" in (tmp_path / "1.log").read_text()
    assert (out / "0" / "report.md").is_file()
