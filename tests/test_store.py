"""Stages are computed once, whole or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lgp.store import MANIFEST, Store, digest_of, facts, write_aside


def write_one(folder: Path) -> Mapping[str, Any]:
    (folder / "value.txt").write_text("one")
    return {"n": 1}


def test_a_stage_is_computed_once(tmp_path: Path) -> None:
    store, calls = Store(tmp_path), []

    def compute(folder: Path) -> Mapping[str, Any]:
        calls.append(folder)
        return write_one(folder)

    first = store.get("s", 1, {"a": 1}, compute)
    assert store.get("s", 1, {"a": 1}, compute) == first and len(calls) == 1
    assert (first / "value.txt").read_text() == "one" and facts(first) == {"n": 1}
    assert json.loads((first / MANIFEST).read_text())["inputs"] == {"a": 1}


def test_settings_and_version_name_the_folder(tmp_path: Path) -> None:
    store = Store(tmp_path)
    paths = {
        store.path("s", 1, {"a": 1}), store.path("s", 2, {"a": 1}), store.path("s", 1, {"a": 2}),
        store.path("t", 1, {"a": 1}),
    }  # fmt: skip
    assert len(paths) == 4
    assert store.path("s", 1, {"a": 1, "b": 2}) == store.path("s", 1, {"b": 2, "a": 1})


def test_a_failed_stage_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def broken(folder: Path) -> None:
        (folder / "half.txt").write_text("half")
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        store.get("s", 1, {}, broken)
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == []
    assert facts(store.get("s", 1, {}, write_one)) == {"n": 1}


def test_left_overs_of_a_killed_job_are_cleared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    kept = store.get("s", 1, {}, write_one)
    import shutil
    import socket

    aside = tmp_path / f".{kept.name}.{socket.gethostname()}-1-dead"
    shutil.copytree(kept, aside)
    shutil.rmtree(kept)
    store.get("s", 1, {}, write_one)
    assert not aside.exists()


def test_another_machine_may_finish_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    final = store.path("s", 1, {})

    def slow(folder: Path) -> Mapping[str, Any]:
        final.mkdir()  # without our lock, as on a shared file system that has none
        (final / "value.txt").write_text("theirs")
        (final / MANIFEST).write_text('{"facts": {"n": 2}}')
        return write_one(folder)

    assert store.get("s", 1, {}, slow) == final
    assert (final / "value.txt").read_text() == "theirs"


def test_digests_do_not_depend_on_key_order() -> None:
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1}) != digest_of({"a": 1})


def test_write_aside_replaces_whole_files(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    write_aside(target, "old")
    write_aside(target, "new")
    assert target.read_text() == "new" and list(tmp_path.iterdir()) == [target]


def test_a_digest_is_that_of_the_canonical_text() -> None:
    value = {
        "b": [1, 2.5, None, True, {"a": "\u00e9\u2028\U0001f600\x00"}],
        "a": {},
        "c": ["x"] * 3,
    }
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    assert digest_of(value) == hashlib.sha256(text.encode()).hexdigest()
