"""A refined index file, its edit log and its report, written so that a kill loses nothing; and the
way back.

In: a `Job` and what it made. Out: files, or the original file from a refined one and its log.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open

from lgp.config import to_plain
from lgp.foreign import read_index, write_index
from lgp.foreign_job import Job, Refined
from lgp.formats.diskann import companions, copy_companions, list_cuts
from lgp.formats.lists import changed_rows
from lgp.formats.patch import Patch, apply_patch, make_patch
from lgp.index import base_layer
from lgp.refine.log import EditLog
from lgp.store import file_digest, write_aside


def save(job: Job, refined: Refined, out: Path, log: Path, report: Path) -> dict[str, Any]:
    """Write the index, its log and a report of the facts: aside, checked by reading the index
    back, then moved into place, the index last.

    Returns:
        the facts, which also stand in the log's header.
    """
    aside = out.with_name(f".{out.name}.{os.getpid()}.part")
    aside.mkdir()
    try:
        return _save(job, refined, aside, out, log, report)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _save(
    job: Job, refined: Refined, aside: Path, out: Path, log: Path, report: Path
) -> dict[str, Any]:
    neighbors = base_layer(refined.engine).neighbors.cpu()
    written = aside / out.name
    write_index(job.index, neighbors, written)
    back = read_index(written, job.index.format, job.request.layout)
    if len(changed_rows(back, neighbors.numpy())):
        raise ValueError(f"{written} does not hold what was written; the disk may be failing")
    cuts = None
    if job.index.format == "diskann":
        cuts = list_cuts(job.index), list_cuts(back)
    patch = make_patch(job.request.index, written, cuts)
    facts = job.facts(refined)
    header = {
        "when": "post",
        "method": job.config.refine.method.value,
        "selector": job.config.refine.selector.value,
        "settings": to_plain(job.config.refine),
        "index_format": job.index.format,
        "original_sha256": file_digest(job.request.index),
        "refined_sha256": file_digest(written),
        "base_sha256": base_layer(job.engine).digest(),
        "result_sha256": base_layer(refined.engine).digest(),
        "facts": facts,
    }
    if refined.repair is not None:
        header["repair"] = to_plain(job.config.repair)
    kept = log.with_name(f".{log.name}.{os.getpid()}.part")
    EditLog(refined.edits, refined.decisions, header).save(kept, patch.tensors())
    kept.rename(log)
    write_aside(report, json.dumps(facts, indent=1))
    move_index(aside, out, companions(out) if job.index.format == "diskann" else [])
    return facts


def move_index(aside: Path, out: Path, beside: Sequence[Path]) -> None:
    """Move the files of a folder beside `out`, the index itself last.

    Args:
        beside: files that would belong to the index; those of an older one go.
    """
    for stale in beside:
        if not (aside / stale.name).exists():
            stale.unlink(missing_ok=True)
    for path in sorted(aside.iterdir(), key=lambda path: path.name == out.name):
        path.replace(out.with_name(path.name))


def undo(refined: Path, log: Path, out: Path) -> None:
    """Write the file that a refinement started from, byte for byte.

    Args:
        log: the edit log written beside the refined file.
    Raises:
        ValueError: a log of something else, a file that is not the one the log belongs to.
    """
    header = EditLog.load(log).header
    if "refined_sha256" not in header:
        raise ValueError(f"{log} is not the log of a refined index file; use lgp.refine.log")
    if not refined.is_file():
        raise ValueError(f"{refined} is not a file; give the refined index (DiskANN: its prefix)")
    found = file_digest(refined)
    if found != header["refined_sha256"]:
        raise ValueError(
            f"{refined} has sha256 {found[:12]}..., the log belongs to "
            f"{header['refined_sha256'][:12]}...; the index changed since, or it is another one"
        )
    with safe_open(log, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    try:
        patch = Patch.from_tensors(tensors)
    except KeyError as error:
        raise ValueError(f"{log} lacks {error}; it cannot take edits back") from error
    apply_patch(refined, patch, out, header["original_sha256"])
    if header.get("index_format") == "diskann":
        copy_companions(refined, out)
