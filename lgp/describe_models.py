"""Which models a configuration names, and what their files say of them (paper Table 10).

In: a checked configuration. Out: a row per role: embedder, selector, controls, reranker. Headers
and small files are read where they lie here; nothing is loaded, and nothing asked of a network.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lgp.choices import EmbedderKind, EngineKind, LlmMode, RerankKind, SelectorKind
from lgp.clip_model import ClipEncoder, check_model, clip_digest
from lgp.config import Config, EmbedderConfig
from lgp.config_llm import LlmConfig
from lgp.llm import EMBEDDED, model_source
from lgp.packaged import PACKAGED_MODELS, WORDLLAMA_FILES, packaged_file, source_digest
from lgp.store import read_object
from lgp.vectors import embed_precomputed

NOT_LOCAL = "not local"
IN_CACHE = "local, in the hub's cache"


@dataclass(frozen=True)
class Model:
    """A model in its role.

    Attributes:
        role: embedder, selector, control or reranker. kind: how it does it, as configured.
        revision: as configured, else the commit in the hub's cache; "" = not stated.
        where: local; not local; not read (an LLM's server, answers without weights); "" = none.
        parameters: numbers in the files, buffers that are not floats left out; None = not known.
        dimensions: of the vectors, or hidden ones of a language model.
        max_tokens: an input is cut to so many; None = no such bound. context: the model's own.
        reading: pooling and templates, or how and with which prompt a language model is asked.
        digest: as stage keys have it, "" where the files are not local.
    """

    role: str
    kind: str
    model: str = ""
    revision: str = ""
    where: str = ""
    parameters: int | None = None
    dimensions: int | None = None
    dtype: str = ""
    max_tokens: int | None = None
    context: int | None = None
    reading: str = ""
    digest: str = ""


def models(config: Config) -> list[Model]:
    """A row per role; of the controls only those that read a model.

    Raises:
        ValueError: a name that is neither a folder nor a hub name, or files that cannot be read.
    """
    found = [_embedder(config.embedder)]
    refine = config.refine
    for at, kind in enumerate((refine.selector, *refine.controls)):
        role = "control" if at else "selector"
        if kind is SelectorKind.encoder:
            row = Model(role, kind.value, refine.encoder, max_tokens=refine.encoder_tokens)
            found.append(_mean_encoder(row, "refine.encoder"))
        elif kind is SelectorKind.llm:
            llm = config.llm
            reading = f"{llm.mode.value}, prompt {config.prompt.name}"
            reading += f", anchor cut to {llm.anchor_tokens} tokens, others {llm.document_tokens}"
            if llm.mode is LlmMode.generate:
                reading += f", answers up to {llm.new_tokens}"
            row = Model(role, kind.value, reading=reading)
            found.append(_language_model(row, llm, "llm.model"))
        elif not at:
            found.append(Model(role, kind.value))
    return [*found, _reranker(config)]


def _reranker(config: Config) -> Model:
    c, llm = config.rerank, config.llm
    if c.kind is RerankKind.none:
        return Model("reranker", c.kind.value)
    if c.kind is RerankKind.encoder:
        row = Model("reranker", c.kind.value, c.model or "minilm", max_tokens=c.max_tokens)
        return _mean_encoder(row, "rerank.model")
    if c.model is not None and c.model != llm.model:
        llm = replace(llm, model=c.model, revision=c.revision)
    how = f"window {c.window}, step {c.step}, " if c.kind is RerankKind.listwise else ""
    reading = f"prompt {config.prompt.name}, {how}documents cut to {c.document_tokens} tokens, "
    reading += f"queries {c.query_tokens}"
    row = Model("reranker", c.kind.value, reading=reading)
    return _language_model(row, llm, "rerank.model" if c.model else "llm.model")


def _embedder(c: EmbedderConfig) -> Model:
    row = Model("embedder", c.kind.value, c.model or c.kind.value, c.revision or "", dtype=c.dtype)
    if c.kind is EmbedderKind.precomputed:
        path = Path(str(c.document_vectors))
        return replace(
            row, model=str(path), revision="", where="local", dtype="", reading="vectors given",
            dimensions=embed_precomputed(path).shape[1], digest=source_digest(str(path)),
        )  # fmt: skip
    if c.kind is EmbedderKind.open_clip:
        return _clip(row, c)
    if c.kind is EmbedderKind.hf:
        asked, shown = c.query_template, c.document_template
        reading = f"{c.pooling.value} pooling, queries {asked!r}, documents {shown!r}"
        row = replace(row, max_tokens=c.max_tokens, reading=reading)
        return _transformers(row, "embedder.model", source_digest)
    row = replace(row, model=c.kind.value, revision="", dtype="float32")
    row = replace(row, reading="mean of static token vectors")
    try:
        weights = packaged_file("wordllama", WORDLLAMA_FILES[0])
    except ModuleNotFoundError:
        return replace(row, where=NOT_LOCAL)
    shapes = tensor_shapes(weights)
    return replace(
        row, where="local", parameters=_count(shapes), dimensions=shapes["embedding.weight"][1],
        digest=source_digest("wordllama"),
    )  # fmt: skip


def _mean_encoder(row: Model, key: str) -> Model:
    """The small encoder of selectors and rerankers (`lgp.selectors.mean_encoder`)."""
    row = replace(row, dtype="float32", reading="mean pooling")
    return _transformers(row, key, source_digest)


def _language_model(row: Model, llm: LlmConfig, key: str) -> Model:
    dtype = llm.dtype + (" activations, fp8 weights" if llm.fp8 else "")
    row = replace(row, model=llm.model, revision=llm.revision or "", dtype=dtype)
    if llm.engine is EngineKind.openai:
        return replace(row, where="not read: at a server", dtype="")
    if llm.replay is not None:
        return replace(row, where="not read: answers without weights")
    if llm.model not in EMBEDDED:
        return _transformers(row, key, model_source)
    try:
        file = packaged_file(*EMBEDDED[llm.model])
    except ModuleNotFoundError:
        return replace(row, where=NOT_LOCAL)
    row = replace(row, where="local", digest=model_source(llm.model))
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError:
        return replace(row, where="local; the package gguf, which reads it, is not installed")
    reader = GGUFReader(file)
    kind = str(reader.fields["general.architecture"].contents())
    return replace(
        row,
        parameters=sum(int(tensor.n_elements) for tensor in reader.tensors),
        dimensions=int(reader.fields[f"{kind}.embedding_length"].contents()),
        context=int(reader.fields[f"{kind}.context_length"].contents()),
    )


def _transformers(row: Model, key: str, digest: Callable[[str], str]) -> Model:
    """A row completed from a folder in transformers' layout: packaged, given, or the hub's cache.

    Args:
        key: the setting that holds the model's name, for messages.
        digest: of a folder's weights, as stage keys of this role have it.
    """
    name, packaged = row.model, row.model in PACKAGED_MODELS
    folder = _folder(name, row.revision or None, key)
    if folder is None:
        return replace(row, where=NOT_LOCAL)
    here = packaged or Path(name).is_dir()
    config = _config(folder / "config.json")
    return replace(
        row, where="local" if here else IN_CACHE,
        revision="" if here else row.revision or folder.name,
        parameters=_count_folder(folder),
        dimensions=_first(config, "hidden_size", "d_model", "n_embd", "dim"),
        context=_first(config, "max_position_embeddings", "n_positions"),
        digest=digest(name) if here else "",
    )  # fmt: skip


def _folder(name: str, revision: str | None, key: str) -> Path | None:
    """Where a model's files are on this machine; None = nowhere."""
    if name in PACKAGED_MODELS:
        try:
            return packaged_file(*PACKAGED_MODELS[name])
        except ModuleNotFoundError:
            return None
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise ValueError(
            f"{key}={name} is neither a folder nor a hub name as in owner/name; correct it"
        ) from error


def _clip(row: Model, c: EmbedderConfig) -> Model:
    """An open_clip model: its configuration comes with the package, its weights may not."""
    import open_clip
    from open_clip.pretrained import get_pretrained_cfg

    clip = ClipEncoder(str(c.model), c.pretrained, c.checkpoint, c.random_weights)
    check_model(clip)
    kind, _, place = clip.model.partition(":")
    given = bool(c.checkpoint or c.random_weights) or kind == "local-dir"
    tag = c.checkpoint or ("random weights" if c.random_weights else c.pretrained or "")
    row = replace(row, revision=tag, reading=f"text and image: {c.fusion.value}")
    if not place and not given:
        place = (
            get_pretrained_cfg(clip.model, c.pretrained or "").get("hf_hub", "").rpartition("/")[0]
        )
    folder = _folder(place, None, "embedder.model") if place else None
    if given:
        row = replace(row, where="local", digest=clip_digest(clip))
    else:
        row = replace(row, where=NOT_LOCAL if folder is None else IN_CACHE)
    if ":" not in clip.model:
        config = open_clip.get_model_config(clip.model)
        parameters = _count_clip(clip.model, config)
    elif folder is not None:
        config = _part(_config(folder / "open_clip_config.json"), "model_cfg")
        parameters = _count_folder(folder)
    else:
        return row
    context = _part(config, "text_cfg").get("context_length", 77)
    return replace(
        row, parameters=parameters, dimensions=_first(config, "embed_dim"), context=context,
        max_tokens=context,
    )  # fmt: skip


def _count_clip(name: str, config: dict[str, Any]) -> int | None:
    """Parameters of a listed model, laid out without memory; None where that needs a hub."""
    if _part(config, "text_cfg").get("hf_model_name"):
        return None
    import open_clip
    import torch

    logging.disable(logging.WARNING)  # it warns that there are no weights, which is the point
    try:
        with torch.device("meta"):
            model = open_clip.create_model(
                name, device="meta", pretrained_image=False, pretrained_text=False
            )
    finally:
        logging.disable(logging.NOTSET)
    return sum(int(parameter.numel()) for parameter in model.parameters())


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """Shapes of a safetensors file's float tensors, from its header.

    Raises:
        ValueError: it is no such file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            return {
                name: list(part.get_shape())
                for name, part in slices.items()
                if part.get_dtype().startswith(("F", "BF"))
            }
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{file} cannot be read as safetensors ({error}); copy it again"
        ) from error


def _count(shapes: dict[str, list[int]]) -> int:
    return sum(map(math.prod, shapes.values()))


def _count_folder(folder: Path) -> int | None:
    """Numbers in a folder's safetensors files, of those its index names where it has one."""
    index, whole = folder / "model.safetensors.index.json", folder / "model.safetensors"
    files = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    if index.is_file():
        named = set(map(str, _part(_config(index), "weight_map").values()))
        files = [folder / Path(name).name for name in sorted(named)]
    return sum(_count(tensor_shapes(file)) for file in files) if files else None


def _config(path: Path) -> dict[str, Any]:
    return read_object(path, "copy it again")


def _part(config: dict[str, Any], key: str) -> dict[str, Any]:
    """An object inside a JSON object; empty where there is none."""
    found = config.get(key)
    return found if isinstance(found, dict) else {}


def _first(config: dict[str, Any], *keys: str) -> int | None:
    """The first of some whole numbers, of a multimodal model those of its text part."""
    for part in (config, _part(config, "text_config")):
        for key in keys:
            if type(part.get(key)) is int:
                return int(part[key])
    return None
