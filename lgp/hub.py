"""A benchmark's folder: a local copy, or the needed files of a data set on the hub.

Input is a folder or a repository with its revision, and patterns of the files needed; output is a
folder in which every pattern matches. What is in the files is unknown here.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lgp.beir import DataError

TIMEOUT_S = 5.0
"""How long the hub may take to answer at all, before anything is fetched."""


@dataclass(frozen=True)
class HubSource:
    """A data set on the hub: `name` as in "owner/name", `revision` a commit or tag."""

    name: str
    revision: str

    def command(self, patterns: Sequence[str]) -> str:
        """The shell command that copies these files into a folder."""
        include = " ".join(f"--include {shlex.quote(pattern)}" for pattern in patterns)
        return (
            f"hf download --repo-type dataset {self.name} --revision {self.revision} {include} "
            "--local-dir FOLDER"
        )


def find_folder(path: str | None, source: HubSource, patterns: Sequence[str]) -> Path:
    """The folder that holds a benchmark's files: `path`, else the hub's cache, filled if need be.

    A revision once fetched is read without asking the hub again; HF_HUB_OFFLINE is respected.

    Args:
        patterns: file names relative to the folder, "*" allowed; each must match something.
    Raises:
        DataError: files are missing from `path`, or the hub cannot be reached (within seconds) or
            does not serve them; the message holds the command that makes a local copy.
    """
    if path is not None:
        missing = _missing(Path(path), patterns)
        if missing:
            raise DataError(
                f"dataset.path={path} lacks {', '.join(missing)}; a local copy has the hub's "
                f"layout: {source.command(patterns)}"
            )
        return Path(path)
    cached = _cached(source, patterns)
    return cached if cached is not None else _fetched(source, patterns)


def _missing(folder: Path, patterns: Sequence[str]) -> list[str]:
    return [pattern for pattern in patterns if not any(folder.glob(pattern))]


def _cached(source: HubSource, patterns: Sequence[str]) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            source.name, repo_type="dataset", revision=source.revision,
            allow_patterns=list(patterns), local_files_only=True,
        )  # fmt: skip
    except LocalEntryNotFoundError:
        return None
    # Older caches do not know what a snapshot should hold, so it may be a part.
    return None if _missing(Path(folder), patterns) else Path(folder)


def _fetched(source: HubSource, patterns: Sequence[str]) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    what = f"{source.name} at revision {source.revision}"
    copy = (
        "without a hub, make a local copy on a machine that has one and set dataset.path=FOLDER: "
        f"{source.command(patterns)}"
    )
    # One short question first: downloads retry for minutes where nobody answers. Transport errors
    # have no common base class that is public, so everything is caught, and raised again.
    try:
        HfApi().dataset_info(source.name, revision=source.revision, timeout=TIMEOUT_S)
        folder = Path(
            snapshot_download(
                source.name, repo_type="dataset", revision=source.revision,
                allow_patterns=list(patterns),
            )
        )  # fmt: skip
    except Exception as error:
        said = str(error).split("\n")[0]
        raise DataError(f"{what} is not to be had ({said}); {copy}") from error
    missing = _missing(folder, patterns)
    if missing:
        raise DataError(f"{what} lacks {', '.join(missing)}; choose another dataset.revision")
    return folder
