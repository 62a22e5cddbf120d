"""What a machine needs of a model to replay its answers: identity, tokenizer, configuration.

In: a loaded model and the folder of its answers. Out: a few small files beside them, and later a
model without weights that finds every answer by the same key. The weights stay where they are.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

import torch

from lgp.config_llm import LlmConfig
from lgp.llm import LanguageModel
from lgp.store import digest_of, write_aside

IDENTITY = "identity.json"


class Weightless:
    """Stands for a model whose weights are elsewhere: it has a configuration and nothing else."""

    def __init__(self, config: Any, folder: Path) -> None:
        self.config, self._folder = config, folder

    def __getattr__(self, name: str) -> NoReturn:
        raise ValueError(
            f"llm.replay={self._folder} lacks an answer that is needed: settings, documents or "
            "graph differ from those it was made with; set them alike, or drop llm.replay and load "
            "the model"
        )


def _folder(answers: Path, llm: LlmConfig) -> Path:
    return answers / "models" / digest_of([llm.model, llm.revision, llm.dtype, llm.fp8])[:16]


def keep_facts(lm: LanguageModel, llm: LlmConfig, answers: Path) -> None:
    """Write a model's small files beside its answers, once; a race leaves one of two equal ones."""
    folder = _folder(answers, llm)
    if isinstance(lm.model, Weightless):
        return
    known = folder / IDENTITY
    if known.is_file():
        if json.loads(known.read_text(encoding="utf-8")) == lm.identity:
            return
        shutil.rmtree(folder, ignore_errors=True)  # other weights under the same name
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    lm.tokenizer.save_pretrained(aside)
    lm.model.config.save_pretrained(aside)
    write_aside(aside / IDENTITY, json.dumps(lm.identity))
    try:
        aside.rename(folder)
    except OSError:
        if not (folder / IDENTITY).is_file():
            raise
        shutil.rmtree(aside)


def shipped_identity(llm: LlmConfig) -> dict[str, Any]:
    """What makes the answers of `llm.replay` (ValueError: no such model's answers there)."""
    assert llm.replay is not None
    path = _folder(Path(llm.replay), llm) / IDENTITY
    if not path.is_file():
        raise ValueError(
            f"llm.replay={llm.replay} holds no answers of llm.model={llm.model} (revision "
            f"{llm.revision}, {llm.dtype}, fp8 {llm.fp8}); give the answers folder of the store "
            "they were made in, with its models folder"
        )
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def shipped_model(llm: LlmConfig) -> LanguageModel:
    """The configured model without weights, from the files beside its answers."""
    from transformers import AutoConfig, AutoTokenizer

    identity = shipped_identity(llm)
    folder = _folder(Path(str(llm.replay)), llm)
    model = Weightless(AutoConfig.from_pretrained(folder), Path(str(llm.replay)))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return LanguageModel(model, tokenizer, identity, torch.device("cpu"))
