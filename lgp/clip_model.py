"""open_clip models: which weights belong to which model, where they are, and loading both.

In: an encoder's settings. Out: a model with its transform and tokenizer. Embedding is in
`lgp.embed_clip`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from lgp.choices import CorruptImages, Fusion
from lgp.store import digest_of, file_digest

log = logging.getLogger(__name__)

HUB_TIMEOUT_S = 10.0
"""How long the hub may take to answer at all, before weights are fetched."""


@dataclass(frozen=True)
class ClipEncoder:
    """Settings of an open_clip encoder.

    Attributes:
        model: a name that open_clip lists, "hf-hub:owner/name" or "local-dir:folder".
        pretrained: tag of the weights; None = those that belong to a model named by a place, or
            a checkpoint that is none of open_clip's own.
        checkpoint: file with the weights, instead of the hub's.
        random_weights: seeded noise instead of weights, for rehearsals and tests.
        fusion: of text and image features. The paper does not say; UniIR's CLIP sums raw ones.
        corrupt_images: what happens to files that are no images; a missing file is always an
            error. A skipped one counts as no image.
        batch_size: items at a time.
        dtype: "float32" or "bfloat16", of weights and activations; features are float32 anyway.
    """

    model: str = "ViT-B-32-quickgelu"
    pretrained: str | None = "openai"
    checkpoint: str | None = None
    random_weights: bool = False
    fusion: Fusion = Fusion.sum
    corrupt_images: CorruptImages = CorruptImages.error
    batch_size: int = 256
    dtype: str = "float32"

    def key(self) -> dict[str, Any]:
        """What changes vectors besides the weights, JSON-able."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        del plain["checkpoint"]  # its digest counts, not its place
        plain["fusion"], plain["corrupt_images"] = self.fusion.value, self.corrupt_images.value
        return {"open_clip": plain}


def check_model(encoder: ClipEncoder) -> None:
    """Refuse a model and weights that do not belong together.

    Weights trained with QuickGELU give wrong vectors in a model without it, and the other way
    round; open_clip only warns. A checkpoint file is held to the tag that `pretrained` names.

    Raises:
        ValueError: an unknown model or tag (the known ones are listed), or such a mismatch.
    """
    import open_clip
    from open_clip.pretrained import get_pretrained_cfg

    if ":" in encoder.model:  # a place; configuration and weights lie together there
        if encoder.pretrained or encoder.checkpoint or encoder.random_weights:
            raise ValueError(
                f"embedder.model={encoder.model} holds its own weights; set "
                "embedder.pretrained=null, without embedder.checkpoint and random_weights"
            )
        return
    config = open_clip.get_model_config(encoder.model)
    if config is None:
        raise ValueError(
            f"embedder.model={encoder.model} is unknown to open_clip; known: "
            f"{', '.join(open_clip.list_models())}"
        )
    if encoder.random_weights:
        if encoder.checkpoint:
            raise ValueError("embedder.random_weights with embedder.checkpoint; drop one")
        return
    if encoder.pretrained is None:
        if encoder.checkpoint is None:
            raise ValueError(
                f"embedder.model={encoder.model} has no weights: set embedder.pretrained to a tag "
                "or embedder.checkpoint to a file"
            )
        return
    # A tag may be listed for the model's twin only, so it is looked up under both names.
    twin = encoder.model.removesuffix("-quickgelu")
    twin = f"{twin}-quickgelu" if twin == encoder.model else twin
    found = [get_pretrained_cfg(name, encoder.pretrained) for name in (encoder.model, twin)]
    trained = found[0] or found[1]
    if not trained:
        tags = open_clip.list_pretrained_tags_by_model(encoder.model)
        raise ValueError(
            f"embedder.pretrained={encoder.pretrained} is no tag of {encoder.model}; known: "
            f"{', '.join(tags)}; for a checkpoint of your own set embedder.pretrained=null"
        )
    here, there = bool(config.get("quick_gelu")), bool(trained.get("quick_gelu"))
    if here != there:
        raise ValueError(
            f"embedder.model={encoder.model} is {'with' if here else 'without'} QuickGELU, but "
            f"the weights {encoder.pretrained} were trained {'with' if there else 'without'} it, "
            f"so vectors would be wrong; set embedder.model={twin}"
        )
    if not found[0]:
        raise ValueError(
            f"embedder.pretrained={encoder.pretrained} is a tag of {twin}, not of "
            f"{encoder.model}; set embedder.model={twin}"
        )


def clip_digest(encoder: ClipEncoder) -> str:
    """Which weights an encoder has, to key a cache: the digest of their file, or of the seed.

    Side effects: weights that are not here yet are fetched.
    Raises:
        ValueError: as `check_model`, or the weights are not to be had.
    """
    check_model(encoder)
    if encoder.random_weights:
        return "random, seed 0"
    if ":" in encoder.model:
        kind, _, place = encoder.model.partition(":")
        if kind != "local-dir":
            return f"{place}@{_hub_commit(place, encoder.model)}"
        folder = Path(place)
        if not folder.is_dir():
            raise ValueError(f"embedder.model={encoder.model} names no folder; correct it")
        return digest_of({p.name: file_digest(p) for p in sorted(folder.iterdir()) if p.is_file()})
    return file_digest(find_weights(encoder))


def find_weights(encoder: ClipEncoder) -> Path:
    """The file of a listed model's weights: the checkpoint, the hub's cache, or the hub.

    Raises:
        ValueError: no such file; or the hub cannot be reached (within seconds), with the way out.
    """
    from open_clip.pretrained import download_pretrained, get_pretrained_cfg

    if encoder.checkpoint is not None:
        path = Path(encoder.checkpoint)
        if not path.is_file():
            raise ValueError(f"embedder.checkpoint={path} is not a file; give the weights' path")
        return path
    assert encoder.pretrained is not None
    trained = get_pretrained_cfg(encoder.model, encoder.pretrained)
    what = f"the weights {encoder.pretrained} of {encoder.model}"
    repository = trained.get("hf_hub", "").rpartition("/")[0]
    if repository:
        _hub_commit(repository, what)
    try:
        return Path(download_pretrained(trained))
    except Exception as error:  # transport errors have no common base class
        raise ValueError(f"{what} are not to be had ({_first_line(error)}); {_WAY_OUT}") from error


_WAY_OUT = (
    "copy them from a machine that reaches it and set embedder.checkpoint=FILE; for a rehearsal "
    "without weights set embedder.random_weights=true"
)


def _hub_commit(repository: str, what: str) -> str:
    """The commit of a repository's weights, in the hub's cache or else at the hub.

    One short question comes before any download: those retry for minutes where nobody answers.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repository, local_files_only=True))
        if any(path.suffix in (".safetensors", ".bin", ".pt") for path in folder.iterdir()):
            return folder.name
    except LocalEntryNotFoundError:
        pass
    try:
        return str(HfApi().model_info(repository, timeout=HUB_TIMEOUT_S).sha)
    except Exception as error:  # transport errors have no common base class
        raise ValueError(
            f"{what} ({repository}) are not to be had from the hub ({_first_line(error)}); "
            f"{_WAY_OUT}"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:200]


def load_clip(encoder: ClipEncoder, device: str) -> tuple[Any, Any, Any]:
    """(model, its transform of an image to pixels [3, H, W], its tokenizer).

    Raises:
        ValueError: as `clip_digest`, or a checkpoint that does not fit the model.
    """
    import open_clip
    from open_clip.pretrained import get_pretrained_cfg
    from open_clip.transform import PreprocessCfg, image_transform_v2

    check_model(encoder)
    placed = ":" in encoder.model
    weights = None if placed or encoder.random_weights else find_weights(encoder)
    # The transform belongs to the weights; a file does not tell its own.
    trained = get_pretrained_cfg(encoder.model, encoder.pretrained or "")
    known = {key: trained[key] for key in _TRANSFORM if key in trained}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            model = open_clip.create_model(
                encoder.model,
                pretrained=None if weights is None else str(weights),
                require_pretrained=not encoder.random_weights,
                pretrained_image=False,
                pretrained_text=False,
                force_preprocess_cfg=None if placed else known,
            )
        except Exception as error:  # each file format has errors of its own
            raise ValueError(
                f"{weights or encoder.model} cannot be loaded as {encoder.model} "
                f"({_first_line(error)}); correct embedder.model or embedder.checkpoint"
            ) from error
    if encoder.random_weights:
        log.warning("%s has random weights: its vectors mean nothing", encoder.model)
    transform = image_transform_v2(PreprocessCfg(**model.visual.preprocess_cfg), is_train=False)
    model = model.to(device, getattr(torch, encoder.dtype)).eval()
    return model, transform, open_clip.get_tokenizer(encoder.model)


_TRANSFORM = ("mean", "std", "interpolation", "resize_mode")
