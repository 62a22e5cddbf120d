"""open_clip encoders: a tiny model of the real classes, images, fusion, weights and errors."""

from __future__ import annotations

import importlib
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from lgp.blocks import embed_plan
from lgp.choices import CorruptImages, Fusion, Storage
from lgp.clip_model import ClipEncoder, check_model, clip_digest, find_weights, load_clip
from lgp.config import ConfigError, EmbedderConfig, EmbedderKind
from lgp.embed_clip import Item, plan_clip
from lgp.embeddings import stored_items
from lgp.images import CorruptImageError, ImageFolder
from lgp.store import Store
from lgp.vectors import check_vectors

factory = importlib.import_module("open_clip.factory")
TINY = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 16, "head_width": 32},
    "text_cfg": {
        "context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2,
    },
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Tells open_clip of a tiny ViT; its name is "tiny-clip"."""
    folder = tmp_path_factory.mktemp("configs")
    (folder / "tiny-clip.json").write_text(json.dumps(TINY))
    open_clip.add_model_config(folder)
    yield "tiny-clip"
    factory._MODEL_CONFIG_PATHS.remove(folder)
    factory._rescan_model_configs()


RANDOM = ClipEncoder("tiny-clip", None, random_weights=True, batch_size=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    path = tmp_path_factory.mktemp("images")
    noise = np.random.default_rng(0)
    for name, size in (("a", (40, 30)), ("b", (64, 64)), ("c", (20, 90))):
        pixels = noise.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path / f"{name}.jpg")
    (path / "copy of a.jpg").write_bytes((path / "a.jpg").read_bytes())
    (path / "broken.jpg").write_bytes((path / "b.jpg").read_bytes()[:400])
    return ImageFolder(path)


ITEMS = [
    Item("a red house by the sea"), Item("", "a.jpg"), Item("a dog", "b.jpg"), Item(""),
    Item("a dog"), Item("", "b.jpg"), Item("tall", "c.jpg"),
]  # fmt: skip


def embed(items: list[Item], folder: ImageFolder | None, encoder: ClipEncoder) -> np.ndarray:
    plan = plan_clip(items, folder, encoder, "cpu")
    return check_vectors(embed_plan(plan, progress=False), "rows", normalise=True)


def test_rows_are_the_models_own_features_one_at_a_time(folder: ImageFolder) -> None:
    torch.manual_seed(0)
    model, _, transform = open_clip.create_model_and_transforms("tiny-clip", pretrained=None)
    model.eval()
    tokenizer = open_clip.get_tokenizer("tiny-clip")
    for fusion in Fusion:
        found = embed(ITEMS, folder, replace(RANDOM, fusion=fusion))
        assert found.dtype == np.float32
        for row, item in zip(found, ITEMS, strict=True):
            parts = []
            with torch.inference_mode():
                if item.text or not item.image:
                    parts.append(model.encode_text(tokenizer([item.text]))[0])
                if item.image:
                    pixels = transform(folder.open(item.image)).unsqueeze(0)
                    parts.append(model.encode_image(pixels)[0])
            if fusion is Fusion.normalise_then_sum:
                parts = [part / part.norm() for part in parts]
            expected = torch.stack(parts).sum(0)
            np.testing.assert_allclose(row, (expected / expected.norm()).numpy(), atol=1e-5)
    both = [embed(ITEMS, folder, replace(RANDOM, fusion=fusion)) for fusion in Fusion]
    assert np.abs(both[0][2] - both[1][2]).max() > 1e-4  # the two fusions differ
    np.testing.assert_allclose(both[0][1], both[1][1], atol=1e-6)  # where there is one


def test_batches_change_nothing(folder: ImageFolder) -> None:
    together = embed(ITEMS, folder, replace(RANDOM, batch_size=100))
    for size in (1, 2, 5):
        np.testing.assert_allclose(
            embed(ITEMS, folder, replace(RANDOM, batch_size=size)), together, atol=1e-5
        )
    rough = embed(ITEMS, folder, replace(RANDOM, dtype="bfloat16"))
    assert 0 < np.abs(rough - together).max() < 0.1 and rough.dtype == np.float32


def test_long_texts_are_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    # 75 words and two marks fill the context; one word more is cut.
    fits, longer = " ".join(["dog"] * 75), " ".join(["dog"] * 76)
    with caplog.at_level(logging.WARNING, "lgp"):
        one = embed([Item(fits)], None, RANDOM)
        assert "cut" not in caplog.text
        two = embed([Item(longer), Item("x"), Item(longer + " cat")], None, RANDOM)
    assert "2 of 3 texts cut to 77 tokens" in caplog.text
    np.testing.assert_allclose(one[0], two[0], atol=1e-6)


def test_corrupt_images(folder: ImageFolder, caplog: pytest.LogCaptureFixture) -> None:
    items = [Item("a dog", "broken.jpg"), Item("", "broken.jpg"), Item("", "a.jpg")]
    with pytest.raises(CorruptImageError, match=r"broken.jpg"):
        embed(items, folder, RANDOM)
    skipping = replace(RANDOM, corrupt_images=CorruptImages.skip)
    found = embed(items, folder, skipping)
    assert "2 corrupt images skipped" in caplog.text
    as_if = embed([Item("a dog"), Item(""), Item("", "a.jpg")], folder, skipping)
    np.testing.assert_allclose(found, as_if, atol=1e-6)
    with pytest.raises(ValueError, match=r"'no.jpg' is not at"):
        embed([Item("", "no.jpg")], folder, skipping)
    with pytest.raises(ValueError, match="has no folder"):
        embed([Item("", "a.jpg")], None, skipping)


def test_distinct_pairs_are_stored_once(folder: ImageFolder, tmp_path: Path) -> None:
    store = Store(tmp_path)
    items = [
        Item("x", "a.jpg"),
        Item("x", "copy of a.jpg"),
        Item("y", "a.jpg"),
        Item("x"),
        ITEMS[0],
    ]
    found = stored_items(store, items, folder, RANDOM, "cpu")
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[3])
    again = stored_items(store, items[::-1], folder, RANDOM, "cpu")
    torch.testing.assert_close(again.flip(0), found, atol=1e-5, rtol=0)
    renamed = [replace(item, image=item.image and "copy of a.jpg") for item in items]
    assert torch.equal(stored_items(store, renamed, folder, RANDOM, "cpu"), found)
    assert len(list(store.root.glob("vectors-*"))) == 2  # another order, but no other names
    for changed in (
        replace(RANDOM, fusion=Fusion.normalise_then_sum),
        replace(RANDOM, corrupt_images=CorruptImages.skip),
    ):
        stored_items(store, items, folder, changed, "cpu")
    half = stored_items(store, items, folder, RANDOM, "cpu", Storage.float16)
    assert half.dtype == torch.float32 and 0 < float((half - found).abs().max()) < 2e-3
    assert len(list(store.root.glob("vectors-*"))) == 5


def test_weights_of_a_file(folder: ImageFolder, tmp_path: Path) -> None:
    torch.manual_seed(7)
    model = open_clip.create_model("tiny-clip", pretrained=None)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    encoders = [
        ClipEncoder("tiny-clip", None, str(tmp_path / name), batch_size=3)
        for name in ("weights.safetensors", "weights.pt")
    ]
    one, two = (embed(ITEMS, folder, encoder) for encoder in encoders)
    np.testing.assert_array_equal(one, two)
    assert np.abs(one - embed(ITEMS, folder, RANDOM)).max() > 0.1
    assert clip_digest(encoders[0]) != clip_digest(encoders[1])
    assert clip_digest(RANDOM) == "random, seed 0"
    with pytest.raises(ValueError, match=r"none.pt is not a file"):
        clip_digest(ClipEncoder("tiny-clip", None, str(tmp_path / "none.pt")))
    (tmp_path / "bad.safetensors").write_bytes(b"x" * 100)
    for name, model_name in (
        ("bad.safetensors", "tiny-clip"), ("weights.safetensors", "ViT-S-32-alt"),
    ):  # fmt: skip
        wrong = ClipEncoder(model_name, None, str(tmp_path / name))
        with pytest.raises(ValueError, match=f"{name} cannot be loaded as {model_name}"):
            load_clip(wrong, "cpu")


def test_a_folder_with_its_own_configuration(folder: ImageFolder, tmp_path: Path) -> None:
    torch.manual_seed(7)
    model = open_clip.create_model("tiny-clip", pretrained=None)
    save_file(model.state_dict(), tmp_path / "open_clip_model.safetensors")
    config = {"model_cfg": TINY, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    placed = ClipEncoder(f"local-dir:{tmp_path}", None)
    found = embed(ITEMS, folder, placed)
    weights = str(tmp_path / "open_clip_model.safetensors")
    same = embed(ITEMS, folder, ClipEncoder("tiny-clip", None, weights))
    np.testing.assert_allclose(found[0], same[0], atol=1e-6)  # a text
    assert np.abs(found[1] - same[1]).max() > 1e-3  # an image, scaled by the folder's own rule
    before = clip_digest(placed)
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config | {"x": 1}))
    assert clip_digest(placed) != before


@pytest.mark.parametrize(
    ("model", "pretrained", "message"),
    [
        ("ViT-B-32", "openai", "without QuickGELU.*set embedder.model=ViT-B-32-quickgelu"),
        ("ViT-B-32-quickgelu", "laion2b_s34b_b79k", "with QuickGELU.*set embedder.model=ViT-B-32$"),
        ("ViT-B-32", "metaclip_400m", "without QuickGELU"),
        ("ViT-B-32", "laion", "is no tag of ViT-B-32; known: openai"),
        ("ViT-X", "openai", "ViT-X is unknown to open_clip; known: "),
        ("tiny-clip", None, "has no weights"),
        ("hf-hub:owner/name", "openai", "holds its own weights"),
    ],
)
def test_models_and_weights_that_do_not_belong_together(
    model: str, pretrained: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_model(ClipEncoder(model, pretrained))


def test_models_and_weights_that_do() -> None:
    for model, pretrained in (
        ("ViT-B-32-quickgelu", "openai"), ("ViT-B-32", "laion2b_s34b_b79k"),
        ("ViT-B-32-quickgelu", "metaclip_400m"), ("ViT-L-14-quickgelu", "openai"),
    ):  # fmt: skip
        check_model(ClipEncoder(model, pretrained))
    # A local copy is held to the tag it is a copy of.
    with pytest.raises(ValueError, match="QuickGELU"):
        check_model(ClipEncoder("ViT-B-32", "openai", checkpoint="copy.safetensors"))


def test_a_hub_out_of_reach_is_told_within_seconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    start = time.monotonic()
    with pytest.raises(ValueError, match=r"weights openai .*embedder.checkpoint=FILE.*random_weig"):
        find_weights(ClipEncoder())
    with pytest.raises(ValueError, match=r"hf-hub:owner/name .*not to be had from the hub"):
        clip_digest(ClipEncoder("hf-hub:owner/name", None))
    assert time.monotonic() - start < 60


def test_settings() -> None:
    with pytest.raises(ConfigError, match=r"embedder.random_weights is set with embedder.kind=hf"):
        EmbedderConfig(EmbedderKind.hf, "minilm", random_weights=True)
    with pytest.raises(ConfigError, match="embedder=open_clip needs a name"):
        EmbedderConfig(EmbedderKind.open_clip)


# ---- the whole path ----


def flickr(collections: Path, folder: Path, n: int) -> Path:
    """The first n photos of flickr8k-800 with their captions."""
    source = collections / "flickr8k-800"
    (folder / "qrels").mkdir(parents=True)
    (folder / "images").symlink_to(source / "images")
    ids = [json.loads(line)["_id"] for line in (source / "corpus.jsonl").open()][:n]
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        lines = (source / name).read_text().splitlines(keepends=True)
        kept = [
            line for line in lines if any(i in line for i in ids) or line.startswith("query-id")
        ]
        (folder / name).write_text("".join(kept))
    return folder


def run(arguments: list[str], folder: Path) -> dict[str, float]:
    """Exact NDCG@10 by graph label of a run."""
    from lgp.cli import main
    from lgp.results import read_queries

    out = folder / "run"
    assert main([*arguments, f"run_dir={out}", f"store_dir={folder / 'store'}", "device=cpu"]) == 0
    results = read_queries(out)
    row = results.rows_by_seed("exact", "greedy", "exact", 0)[-1]
    return {"exact": float(np.nanmean(results.columns["ndcg_at_10"][row]))}


@pytest.mark.parametrize("direction", ["text_to_image", "image_to_text"])
def test_photos_and_captions_run_the_whole_path(
    direction: str, collections: Path, tmp_path: Path
) -> None:
    path = flickr(collections, tmp_path / "data", 40)
    n = {"text_to_image": 40, "image_to_text": 200}[direction]
    run(
        [
            "dataset=image_text", f"dataset.path={path}", f"dataset.direction={direction}",
            "embedder=open_clip", "embedder.model=tiny-clip", "embedder.random_weights=true",
            "refine=farthest", "index.max_degree=8", "index.construction_width=20",
            "refine.min_coverage_gain=1", "search.widths=[10,20]", "search.budgets=[30]",
        ],
        tmp_path,
    )  # fmt: skip
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["n_documents"] == n and summary["n_queries"] == 240 - n
    assert summary["graphs"][1]["n_edits"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["text_to_image", "image_to_text"])
def test_flickr8k_runs_the_whole_path(direction: str, collections: Path, tmp_path: Path) -> None:
    checkpoint = os.environ.get("LGP_CLIP_CHECKPOINT")
    weights = [f"embedder.checkpoint={checkpoint}"]
    if not checkpoint:  # random weights find nothing anyway, and the default model takes minutes
        weights = ["embedder.random_weights=true", "embedder.model=tiny-clip"]
    found = run(
        [
            "dataset=image_text", f"dataset.path={collections / 'flickr8k-800'}",
            f"dataset.direction={direction}", "embedder=open_clip", *weights,
            "refine=farthest", "refine.min_coverage_gain=1",
        ],
        tmp_path,
    )  # fmt: skip
    if checkpoint:
        assert found["exact"] > 0.6  # one of 800; noise is at 0.01
