"""M-BEIR on a miniature copy: what is read, what is refused, and every task from end to end."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from by_hand import check_run, encoder_words, run_task
from fixtures_mbeir import HASHED, N_CANDIDATES, N_QUERIES, parts, write_lines, write_mbeir
from test_vlm import save_model

from lgp.ask import Prompt
from lgp.choices import Instruction, MbeirTask, UnknownIds
from lgp.cli import compose, main
from lgp.data import DataError, load_dataset
from lgp.mbeir import MODALITIES, SIZES, load_mbeir, sampled
from lgp.mbeir_files import normalise, read_entries, read_instructions, read_mbeir_qrels
from lgp.vlm import VlmEngine

TASKS = list(MbeirTask)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mbeir(tmp_path_factory.mktemp("mbeir"))


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_what_its_files_say(copy: Path, task: MbeirTask) -> None:
    data = load_mbeir(task, str(copy))
    dataset, (query_side, side) = parts(task)
    pool = f"{task.value}_test" if dataset == 9 else task.value
    candidates = records(copy / f"cand_pool/local/mbeir_{pool}_cand_pool.jsonl")
    assert data.doc_ids == [f"{dataset}:{n + 1}" for n in range(N_CANDIDATES)]
    assert data.texts == [normalise(str(c["txt"] or "")) for c in candidates]
    assert (data.images or [""] * N_CANDIDATES) == [c["img_path"] or "" for c in candidates]
    assert any(data.texts) == ("text" in side) and any(data.images) == ("image" in side)
    assert data.info["modalities"] == {side: N_CANDIDATES}, "both spellings are one"
    assert data.info["n_duplicate_texts"] == 4
    # The last query has no positives; all others are kept, in file order.
    assert data.query_ids == [f"{dataset}:{n + 1}" for n in range(N_QUERIES - 1)]
    assert any(data.queries) == ("text" in query_side)
    assert len(data.query_images) == (N_QUERIES - 1 if "image" in query_side else 0)
    assert data.instructions == [] and data.excluded == {}
    wanted: dict[str, dict[str, int]] = {name: {} for name in data.query_ids}
    n_other = 0
    for line in (copy / f"qrels/test/mbeir_{task.value}_test_qrels.txt").read_text().splitlines():
        qid, _, did, grade, number = line.split()
        assert number == task.value[-1]
        if task is HASHED:
            qid = f"{int(qid) // 500_000}:{int(qid) % 500_000}"
            did = f"{int(did) // 10_000_000}:{int(did) % 10_000_000}"
        if did.split(":")[0] == str(dataset):
            wanted[qid][did] = int(grade)
        else:
            n_other += 1
    assert data.qrels == wanted and any(0 in found.values() for found in wanted.values())
    assert data.info["n_other_dataset"] == n_other == (4 if dataset in (5, 6) else 0)
    assert data.info["n_positives_differ"] == 1
    assert (data.info["n_all_queries"], data.info["n_judged_queries"]) == (N_QUERIES, N_QUERIES - 1)
    assert MODALITIES[int(task.value[-1])] == (query_side, side)


@pytest.mark.parametrize("task", TASKS)
def test_every_image_opens_from_the_folder_or_the_tar(copy: Path, task: MbeirTask) -> None:
    data = load_mbeir(task, str(copy))
    refs = [ref for ref in data.images + data.query_images if ref]
    if not refs:
        assert data.image_folder is None, "a task of texts needs no images"
        return
    assert data.image_folder is not None
    packed = [ref for ref in refs if not (copy / ref).is_file()]
    assert packed and len(packed) < len(refs)
    assert {data.image_folder.open(ref).size for ref in refs} == {(8, 8)}


def test_missing_images_are_told_with_the_way_to_get_them(
    copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("query", "cand_pool", "qrels", "instructions"):
        shutil.copytree(copy / name, tmp_path / name)
    assert load_mbeir(MbeirTask.cirr_task7, str(tmp_path)).image_folder is None
    assert "cat mbeir_images.tar.gz.part-* | tar -xz" in caplog.text
    caplog.clear()
    data = load_mbeir(MbeirTask.cirr_task7, str(tmp_path), images=str(copy))
    assert data.image_folder is not None and "tar -xz" not in caplog.text
    data.image_folder.open(data.images[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ('  "a red\r\n coat"  ', "A red\n coat."),
        ("Ends well!", "Ends well!"),
        ("is it?", "Is it?"),
        ('""', ""),
        ('say "no"', 'Say "no.'),
    ],
)
def test_text_is_normalised_as_uniir_does(text: str, expected: str) -> None:
    assert normalise(text) == expected


def test_instructions_are_chosen_by_seed_and_joined_as_uniir_joins_them(copy: Path) -> None:
    found = read_instructions(copy / "instructions/query_instructions.tsv")
    assert found["8", "image,text", "image"] == (
        "Find what cirr_task7 asks.", "Show image for image,text!",
    ), "empty prompts are none, and one spelling is looked up"  # fmt: skip
    raw = read_entries(
        copy / "query/test/mbeir_webqa_task2_test.jsonl", "qid", "query_txt", "query_img_path"
    )
    texts: set[tuple[str, ...]] = set()
    used: set[str] = set()
    for seed in range(6):
        data = load_mbeir(MbeirTask.webqa_task2, str(copy), form=Instruction.uniir, seed=seed)
        texts.add(tuple(data.query_texts))
        for name, head, whole in zip(
            data.query_ids, data.instructions, data.query_texts, strict=True
        ):
            used.add(head)
            assert whole == normalise(f"{head}{raw[name].text}"), "UniIR's own composition"
    assert used == {"Find what webqa_task2 asks. ", "Show image,text for text! "}
    assert len(texts) > 1
    once, again = (
        load_mbeir(MbeirTask.nights_task4, str(copy), form=Instruction.uniir, seed=3)
        for _ in range(2)
    )
    assert once.query_texts == again.query_texts
    assert once.queries == [""] * 8 and all(once.instructions), "an image is asked with words, too"
    # A smaller sample asks its queries in the same words.
    few = load_mbeir(
        MbeirTask.nights_task4, str(copy), form=Instruction.uniir, seed=3, sample_queries=3
    )
    words = dict(zip(once.query_ids, once.query_texts, strict=True))
    assert few.query_texts == [words[name] for name in few.query_ids]


def test_a_sample_is_uniform_seeded_nested_and_blind_to_the_order_of_the_file() -> None:
    names = [f"9:{n}" for n in range(200)]
    draws = [sampled(names, 20, seed) for seed in range(300)]
    assert all(len(draw) == 20 for draw in draws) and len(set(draws)) == 300
    times = [sum(name in draw for draw in draws) for name in names]
    # Binomial(300, 0.1): mean 30, standard deviation 5.2; 200 names stay within 5 of those.
    assert min(times) > 4 and max(times) < 56
    assert sampled(names[::-1], 20, 1) == draws[1] < sampled(names, 50, 1)
    assert sampled(names, None, 0) == sampled(names, 500, 0) == frozenset(names)


def test_the_drawn_queries_are_kept_and_saved(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "dataset=mbeir", "dataset.task=webqa_task1", f"dataset.path={copy}", "refine=farthest",
        "dataset.sample_queries=3", "dataset.seed=5", "index.max_degree=4", "name=one",
        "index.construction_width=8", "search.widths=[10]", "search.budgets=[]",
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["lgp"])
    assert main(words) == 0
    saved = (tmp_path / "runs/one/sampled_queries.txt").read_text().split()
    judged = load_mbeir(MbeirTask.webqa_task1, str(copy)).query_ids
    assert len(saved) == 3 and set(saved) == sampled(judged, 3, 5)
    asked = {line["query_id"] for line in records(tmp_path / "runs/one/queries.jsonl")}
    assert asked == set(saved)
    info = json.loads((tmp_path / "runs/one/summary.json").read_text())["dataset_info"]
    assert (info["sampled"], info["n_judged_queries"], info["seed"]) == (True, 8, 5)


def test_the_papers_knobs_come_with_the_benchmark_and_can_be_overridden() -> None:
    words = ["dataset=mbeir", "dataset.task=webqa_task2"]
    config = compose(words)
    assert (config.dataset.sample_queries, config.refine.shortlist_size) == (100, 12)
    for more in ("refine=llm", "index=hnsw", "refine=uniform"):
        assert compose([*words, more]).refine.shortlist_size == 12
    own = compose([*words, "refine.shortlist_size=24", "dataset.sample_queries=null"])
    assert (own.dataset.sample_queries, own.refine.shortlist_size) == (None, 24)
    with pytest.raises(ValueError, match=r"dataset.task=webqa_task3 is no task .*nights_task4"):
        compose(["dataset=mbeir", "dataset.task=webqa_task3"])
    with pytest.raises(ValueError, match=r"dataset.task=None is no task of dataset=mbeir"):
        compose(["dataset=mbeir"])


def test_images_are_not_taken_for_empty_texts(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for task, what in (("nights_task4", "45 of 45 documents"), ("mscoco_task3", "8 of 8 queries")):
        monkeypatch.setattr("sys.argv", ["lgp"])
        assert main(["dataset=mbeir", f"dataset.task={task}", f"dataset.path={copy}"]) == 2
        said = capsys.readouterr().err
        assert f"{what} of mbeir-{task} are images without text, which embedder=wordllama" in said


def test_unlike_sizes_and_positives_are_warned_of(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        load_mbeir(MbeirTask.cirr_task7, str(copy))
    assert "45 candidates here and 21551 in the published copy" in caplog.text
    assert "9 queries here and 4170" in caplog.text
    assert "1 of 9 queries list other positives in pos_cand_list" in caplog.text
    assert "(8:5)" in caplog.text and set(SIZES) == set(MbeirTask)
    assert sum(n for n, _ in SIZES.values()) == 5_609_079


def test_damaged_files_are_refused(copy: Path, tmp_path: Path) -> None:
    task = MbeirTask.webqa_task1
    shutil.copytree(copy, tmp_path / "m")
    folder = tmp_path / "m"
    query, pool = (
        folder / "query/test/mbeir_webqa_task1_test.jsonl",
        folder / "cand_pool/local/mbeir_webqa_task1_cand_pool.jsonl",
    )
    qrels = folder / "qrels/test/mbeir_webqa_task1_test_qrels.txt"
    good = qrels.read_text()
    qrels.write_text(good + "2:1 0 2:999 1 1\n")
    with pytest.raises(DataError, match=r"qrels.txt names 1 document ids .*: 2:999; .*=drop"):
        load_mbeir(task, str(folder), sample_queries=1)
    data = load_mbeir(task, str(folder), unknown_ids=UnknownIds.drop)
    assert data.info["n_dropped_qrels"] == 1
    qrels.write_text(good + "2:777 0 2:1 1 1\n")
    with pytest.raises(DataError, match=r"names 1 query ids .*: 2:777"):
        load_mbeir(task, str(folder))
    for line, message in (
        ("2:1 0 2:2 1", "expected 'qid 0 did relevance task_id'"),
        ("2:1 0 2:2 one 1", "relevance a whole number"),
        (good.splitlines()[0].replace(" 1 1", " 2 1"), "have grade 2 here and 1 before"),
    ):
        qrels.write_text(good + line + "\n")
        with pytest.raises(DataError, match=message):
            read_mbeir_qrels(qrels)
    one = {"did": "2:1", "txt": "a", "img_path": None, "modality": "text"}
    for change, message in (
        ({"did": None}, "line 2: did: None is no id"),
        ({"did": True}, "line 2: did: True is no id"),
        ({"did": "2:1"}, "1 records repeat an earlier did: 2:1"),
        ({"did": 20_000_001}, "1 records repeat an earlier did: 2:1"),
        ({"txt": 5}, "txt is 5; it must be a string or null"),
        ({"modality": "audio"}, "modality 'audio' is unknown; known: text, image, image,text"),
        ({"modality": None}, "modality None is unknown"),
    ):
        write_lines(pool, [one, one | {"did": "2:2"} | change])
        with pytest.raises(DataError, match=message):
            load_mbeir(task, str(folder))
    write_lines(query, [{"qid": "2:1", "query_txt": "a", "query_modality": "text",
                         "pos_cand_list": "2:1"}])  # fmt: skip
    with pytest.raises(DataError, match=r"pos_cand_list is '2:1'; it must be a list"):
        read_entries(query, "qid", "query_txt", "query_img_path")
    (folder / "instructions/query_instructions.tsv").write_text("head\ntext\ttext\n")
    with pytest.raises(DataError, match=r"line 2: expected two modalities, .*found 2 columns"):
        read_instructions(folder / "instructions/query_instructions.tsv")
    query.unlink()
    with pytest.raises(DataError, match=r"lacks query/test/mbeir_webqa.*_test.jsonl; .*hf down"):
        load_mbeir(task, str(folder))


@pytest.fixture(scope="module")
def tiny_vlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("tiny-vlm"), moe=False)


@pytest.fixture(autouse=True)
def ranked_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model's ranking is noise: prompts and images go its whole way, the text is ours."""
    text = " > ".join(f"[{n}]" for n in range(20, 0, -1))

    def generate(engine: VlmEngine, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        pixels = engine.inputs(prompts)["pixel_values"]
        assert len(pixels) > 0, "no image reached the model"
        return [{"text": text, "prompt_tokens": 1, "output_tokens": 1} for _ in prompts]

    monkeypatch.setattr(VlmEngine, "generate", generate)


def check_task(copy: Path, task: MbeirTask, folder: Path, encoder: Path, vlm: Path) -> None:
    words = ["dataset=mbeir", f"dataset.task={task.value}", f"dataset.path={copy}"]
    # An encoder of texts is refused where a side is images only: a model that sees ranks there.
    rerank = encoder_words(encoder)
    if not all("text" in side for side in parts(task)[1]):
        rerank = [
            "rerank=listwise", "prompt=image_text", "llm=qwen3_vl_30b_a3b", f"llm.model={vlm}",
            "llm.dtype=float32", "llm.device_map=null", "llm.max_pixels=4096",
            "llm.min_pixels=1024",
        ]  # fmt: skip
    config, run_dir, dataset = run_task(words, folder, rerank)
    assert config.refine.shortlist_size == 12
    # Per query: exact, vanilla and refined at two widths and a budget, and the same reranked.
    assert check_run(config, run_dir, dataset) == 8 * (1 + 3 + 3) * 2
    assert json.loads((run_dir / "summary.json").read_text())["dataset"] == f"mbeir-{task.value}"
    assert (run_dir / "report.md").is_file()
    assert (run_dir / "ndcg_at_10_rerank.png").is_file()
    assert not (run_dir / "sampled_queries.txt").exists(), "100 of 8 is all of them"


FAST = [MbeirTask.webqa_task2, MbeirTask.nights_task4]


@pytest.mark.parametrize("task", FAST)
def test_a_task_runs_end_to_end_and_every_metric_is_right(
    copy: Path, task: MbeirTask, tmp_path: Path, tiny_encoder: Path, tiny_vlm: Path
) -> None:
    check_task(copy, task, tmp_path, tiny_encoder, tiny_vlm)


@pytest.mark.slow
@pytest.mark.parametrize("task", [task for task in TASKS if task not in FAST])
def test_every_other_task_does_so_too(
    copy: Path, task: MbeirTask, tmp_path: Path, tiny_encoder: Path, tiny_vlm: Path
) -> None:
    check_task(copy, task, tmp_path, tiny_encoder, tiny_vlm)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_composes_with_its_instruction(copy: Path, task: MbeirTask) -> None:
    words = ["dataset=mbeir", f"dataset.task={task.value}", f"dataset.path={copy}"]
    data = load_dataset(compose([*words, "dataset.instruction=uniir"]).dataset)
    assert len(data.instructions) == N_QUERIES - 1 and all(data.instructions)
