"""BRIGHT on a miniature copy: what is read, what is refused, and every task from end to end."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from by_hand import check_run, encoder_words, run_task
from fixtures_bright import LONGEST, WITH_EXCLUDED, WITHOUT_LONG, write_bright

from lgp.bright import LONG_TASKS, SIZES, SOURCE, instruction, load_bright
from lgp.choices import BrightTask, EmptyDocuments, Instruction, QuerySource, UnknownIds
from lgp.cli import compose, main
from lgp.data import DataError, load_dataset
from lgp.embed import HfEncoder

TASKS = list(BrightTask)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bright(tmp_path_factory.mktemp("bright"))


def table(folder: Path, part: str, task: BrightTask) -> list[dict[str, object]]:
    files = sorted((folder / part).glob(f"{task.value}-*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_what_its_files_say(copy: Path, task: BrightTask) -> None:
    data = load_bright(task, str(copy))
    documents, rows = table(copy, "documents", task), table(copy, "examples", task)
    assert data.doc_ids == [row["id"] for row in documents]
    assert any("/" in name and " " in name and "." in name for name in data.doc_ids)
    assert data.texts == [str(row["content"]).strip() for row in documents]
    assert data.query_ids == [row["id"] for row in rows]
    assert data.queries == [row["query"] for row in rows]
    assert data.query_texts == data.queries and data.instructions == []
    assert data.qrels == {row["id"]: dict.fromkeys(row["gold_ids"], 1) for row in rows}
    wanted = {r["id"]: frozenset(r["excluded_ids"]) for r in rows if r["excluded_ids"] != ["N/A"]}
    assert data.excluded == wanted
    assert bool(wanted) == (task in WITH_EXCLUDED)
    distinct = len({row["content"] for row in documents})
    assert data.info["n_distinct_texts"] == distinct
    assert data.info["n_duplicate_texts"] == len(documents) - distinct
    assert (distinct == len(documents)) == (task is BrightTask.leetcode)
    assert data.info["n_queries_without_relevant"] == 1
    assert data.info["n_excluded"] == sum(map(len, wanted.values()))
    assert min(map(len, data.texts)) == 1 or task is BrightTask.leetcode
    assert task is not BrightTask.biology or max(map(len, data.texts)) == LONGEST


def test_a_split_of_two_files_is_one_corpus(copy: Path) -> None:
    assert len(sorted((copy / "documents").glob("leetcode-*.parquet"))) == 2
    assert load_bright(BrightTask.leetcode, str(copy)).info["n_docs"] == 48


def test_two_tasks_share_a_corpus_but_not_their_names(copy: Path) -> None:
    aops = load_bright(BrightTask.aops, str(copy))
    other = load_bright(BrightTask.theoremqa_questions, str(copy))
    assert sorted(aops.texts) == sorted(other.texts) and aops.queries != other.queries
    assert len(set(other.queries)) == len(other.queries) - 1, "two queries with one text stay two"


@pytest.mark.parametrize("task", TASKS)
def test_long_documents_exist_for_some_tasks_and_are_refused_by_name(
    copy: Path, task: BrightTask
) -> None:
    assert (task in LONG_TASKS) == (task not in WITHOUT_LONG)
    if task in WITHOUT_LONG:
        with pytest.raises(DataError, match=f"no long documents for {task.value}; .*biology"):
            load_bright(task, str(copy), long_documents=True)
        return
    data = load_bright(task, str(copy), long_documents=True)
    pages = table(copy, "long_documents", task)
    assert data.doc_ids == [row["id"] for row in pages] and len(pages) == 16
    rows = table(copy, "examples", task)
    assert data.qrels == {row["id"]: dict.fromkeys(row["gold_ids_long"], 1) for row in rows}


def test_queries_can_be_those_a_model_rewrote(copy: Path) -> None:
    data = load_bright(BrightTask.pony, str(copy), queries=QuerySource.gpt4_reason)
    assert len(data.queries) == 7, "the rewritten ones are fewer at some revisions"
    assert all(text.startswith("Let us think. ") for text in data.queries)
    with pytest.raises(DataError, match=r"lacks grit_reason/pony-\*.parquet"):
        load_bright(BrightTask.pony, str(copy), queries=QuerySource.grit_reason)


@pytest.mark.parametrize(
    ("form", "task", "long", "expected"),
    [
        (
            "qwen", "stackoverflow", False,
            "Instruct: Given a Stack Overflow post, retrieve relevant passages that help answer "
            "the post\nQuery: ",
        ),
        (
            "qwen", "pony", False,
            "Instruct: Given a pony question, retrieve relevant passages that help answer the "
            "question\nQuery: ",
        ),
        (
            "qwen", "leetcode", False,
            "Instruct: Given a coding problem, retrieve relevant examples that help answer the "
            "problem\nQuery: ",
        ),
        (
            "qwen", "theoremqa_theorems", False,
            "Instruct: Given a Math problem, retrieve relevant theorems that help answer the "
            "problem\nQuery: ",
        ),
        ("bge", "earth_science", True,
         "Represent this Earth Science post for searching relevant documents: "),
        ("bge", "pony", False, "Represent this Pony question for searching relevant passages: "),
        ("bge", "aops", False, "Represent this Math problem for searching relevant examples: "),
        ("none", "aops", False, ""),
    ],
)  # fmt: skip
def test_instructions_are_the_benchmarks_own(
    form: str, task: str, long: bool, expected: str
) -> None:
    assert instruction(Instruction(form), BrightTask(task), long) == expected


def test_the_papers_embedders_are_presets() -> None:
    asked = "Instruct: Given a web search query, retrieve relevant passages that answer the query"
    for name in ("qwen3_embedding_4b", "diver_4b_1020", "diver_4b_1020_repo"):
        e = compose([f"embedder={name}"]).embedder
        assert e.query_template == asked + "\nQuery:{text}", "no space, as both models were trained"
        prefix = "Represent this text:" if name.endswith("repo") else ""
        assert e.document_template == f"{prefix}{{text}}"
        encoder = HfEncoder(  # its checks, too
            str(e.model), e.revision, e.pooling, e.query_template, e.document_template,
            e.max_tokens, e.batch_tokens, e.dtype, e.expected_final_token,
        )  # fmt: skip
        assert (encoder.pooling.value, encoder.expected_final_token) == ("last", "<|endoftext|>")


def test_recall_ceilings_are_said(copy: Path) -> None:
    # Pony's first query has 20 relevant documents, of which a list of 10 holds half.
    data = load_bright(BrightTask.pony, str(copy))
    assert len(data.qrels["0"]) == 20
    assert data.info["recall_at_10_ceiling"] == pytest.approx((0.5 + 6) / 7)
    assert load_bright(BrightTask.aops, str(copy)).info["recall_at_10_ceiling"] == 1


def test_an_instruction_is_read_by_the_embedder_only(copy: Path) -> None:
    data = load_bright(BrightTask.pony, str(copy), form=Instruction.qwen)
    head = instruction(Instruction.qwen, BrightTask.pony)
    assert data.query_texts == [head + text for text in data.queries]
    assert not any("Instruct" in text for text in data.queries)


def test_other_sizes_than_the_pinned_revisions_are_warned_of(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        load_bright(BrightTask.pony, str(copy))
    text = caplog.text
    assert "48 documents (39 distinct texts), 8 queries" in text
    assert "48 documents here and 7894 at" in text and "8 queries here and 112 at" in text
    assert "39 distinct texts here and 6183" in text
    caplog.clear()
    load_bright(BrightTask.pony, str(copy), queries=QuerySource.gpt4_reason)
    assert "queries here" not in caplog.text, "nobody promised their number"
    assert set(SIZES) == set(BrightTask) and sum(n for _, _, n in SIZES.values()) == 1384


def test_damaged_copies_are_refused(copy: Path, tmp_path: Path) -> None:
    def write(part: str, **columns: list[object]) -> None:
        (tmp_path / part).mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), tmp_path / part / "pony-00000-of-00001.parquet")

    def load(**options: UnknownIds | EmptyDocuments) -> object:
        return load_bright(BrightTask.pony, str(tmp_path), **options)

    with pytest.raises(DataError, match=r"lacks documents/pony-.*hf download --repo-type dataset"):
        load()
    write("documents", id=["a/b.txt", "c"], content=["text", ""])
    write("examples", id=["0"], query=["q"], gold_ids=[["c"]])
    with pytest.raises(DataError, match=r"lacks the columns excluded_ids; it has id, query"):
        load()
    write("examples", id=["0"], query=["q"], gold_ids=[["gone"]], excluded_ids=[["N/A"]])
    with pytest.raises(DataError, match=r"gold_ids of pony names 1 document ids .*: gone; .*drop"):
        load()
    assert load(unknown_ids=UnknownIds.drop).info["n_dropped_qrels"] == 1  # type: ignore[attr-defined]
    write("examples", id=["0"], query=["q"], gold_ids=[["c"]], excluded_ids=[["x"]])
    with pytest.raises(DataError, match=r"excluded_ids names 1 document ids .*: x"):
        load()
    write("examples", id=["0", "0"], query=["q", "r"], gold_ids=[["c"]] * 2, excluded_ids=[[]] * 2)
    with pytest.raises(DataError, match=r"query id '0' is used twice"):
        load()
    write("examples", id=["0"], query=["q"], gold_ids=[["c"]], excluded_ids=[None])
    assert load().info["n_empty"] == 1  # type: ignore[attr-defined]
    assert load(empty=EmptyDocuments.drop).doc_ids == ["a/b.txt"]  # type: ignore[attr-defined]
    write("documents", id=["a", "a"], content=["text", "more"])
    with pytest.raises(DataError, match=r"1 documents repeat an earlier id: a"):
        load()
    file = tmp_path / "documents" / "pony-00000-of-00001.parquet"
    file.write_bytes((copy / "documents" / file.name).read_bytes()[:-7])
    with pytest.raises(DataError, match=r"cannot be read as parquet .*copy it again"):
        load()


def test_a_hub_that_cannot_be_reached_is_one_clear_error(tmp_path: Path) -> None:
    words = ["dataset=bright", "dataset.task=biology", "refine=none"]
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "lgp.cli", *words, f"store_dir={tmp_path / 'store'}"],
        env=os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": "http://127.0.0.1:9"},
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert time.monotonic() - start < 45, "it asks once and does not retry"
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"lgp: {SOURCE.name} at revision {SOURCE.revision} is not to be had (")
    assert "set dataset.path=FOLDER: hf download --repo-type dataset mteb/BRIGHT" in said
    assert "--include 'documents/biology-*.parquet' --include 'examples/biology-*.parquet'" in said
    assert "Traceback" not in done.stderr


def test_a_cached_revision_is_read_without_the_hub(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The hub's cache layout: what an earlier download of this revision left behind.
    root = tmp_path / "datasets--mteb--BRIGHT" / "snapshots"
    root.mkdir(parents=True)
    (root / SOURCE.revision).symlink_to(copy)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert load_bright(BrightTask.pony).info["source"] == f"{SOURCE.name}@{SOURCE.revision}"
    with pytest.raises(DataError, match=r"is not to be had"):
        load_bright(BrightTask.pony, queries=QuerySource.grit_reason)


def test_impossible_settings_are_told_at_launch() -> None:
    with pytest.raises(ValueError, match=r"dataset.task=bilogy is no task .*; known: biology, "):
        compose(["dataset=bright", "dataset.task=bilogy"])
    with pytest.raises(ValueError, match=r"instruction=uniir is not offered .*none, qwen, bge"):
        compose(["dataset=bright", "dataset.task=pony", "dataset.instruction=uniir"])
    with pytest.raises(ValueError, match=r"two instructions"):
        compose(
            ["dataset=bright", "dataset.task=pony", "dataset.instruction=qwen",
             "embedder=qwen3_embedding_4b"]
        )  # fmt: skip
    with pytest.raises(ValueError, match=r"only mbeir draws queries; use dataset.max_queries"):
        compose(["dataset=bright", "dataset.task=pony", "dataset.sample_queries=3"])


def check_task(copy: Path, task: BrightTask, folder: Path, rerank: Path) -> None:
    words = ["dataset=bright", f"dataset.task={task.value}", f"dataset.path={copy}"]
    config, run_dir, dataset = run_task(words, folder, encoder_words(rerank))
    # Per query: exact, vanilla and refined at two widths and a budget, each twice.
    assert check_run(config, run_dir, dataset) == 7 * (1 + 3 + 3) * 2
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["dataset"] == f"bright-{task.value}"
    assert summary["n_queries_without_relevant"] == 1
    assert (run_dir / "report.md").is_file() and (run_dir / "ndcg_at_10_rerank.png").is_file()


FAST = [BrightTask.biology, BrightTask.aops]


@pytest.mark.parametrize("task", FAST)
def test_a_task_runs_end_to_end_and_every_metric_is_right(
    copy: Path, task: BrightTask, tmp_path: Path, tiny_encoder: Path
) -> None:
    check_task(copy, task, tmp_path, tiny_encoder)


@pytest.mark.slow
@pytest.mark.parametrize("task", [task for task in TASKS if task not in FAST])
def test_every_other_task_does_so_too(
    copy: Path, task: BrightTask, tmp_path: Path, tiny_encoder: Path
) -> None:
    check_task(copy, task, tmp_path, tiny_encoder)


def test_the_command_line_runs_a_task_with_static_vectors(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["lgp"])
    words = [
        "dataset=bright", "dataset.task=theoremqa_questions", f"dataset.path={copy}",
        "dataset.instruction=bge", "refine=farthest", "index.max_degree=4",
        "index.construction_width=8", "search.widths=[10]", "search.budgets=[]", "name=one",
    ]  # fmt: skip
    assert main(words) == 0
    info = json.loads((tmp_path / "runs/one/summary.json").read_text())["dataset_info"]
    assert (info["instruction"], info["n_excluded"]) == ("bge", 84)
    assert load_dataset(compose(words).dataset).query_texts[0].startswith("Represent this Math")
