"""Stages are computed once, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import lgp
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


# --- racing ---------------------------------------------------------------------------------------

# Words: the store, what to do. Each computation leaves a file of its own in STORE/counts.
RACER = r"""
import contextlib, os, socket, sys, time, types
from pathlib import Path

root, how, package = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
sys.modules["lgp"] = types.ModuleType("lgp")  # without the engine: it takes seconds to import
sys.modules["lgp"].__path__ = [package]
from lgp import store

if how == "no lock":  # as on two machines whose shared disk has no locks
    socket.gethostname = lambda: f"host{os.getpid()}"
    store.locked = lambda path, timeout_s=-1: contextlib.nullcontext(True)
if how == "no flock":  # a file system that says so
    import fcntl
    def refuse(*_):
        raise OSError(38, "Function not implemented")
    fcntl.flock = refuse

def compute(folder):
    (root / "counts" / str(os.getpid())).touch()
    while how == "hang" and os.getppid():
        time.sleep(0.05)
    time.sleep(0.3)
    (folder / "value.txt").write_text("one")

(root / "ready" / str(os.getpid())).touch()
while not (root / "go").exists():
    time.sleep(0.002)
print((store.Store(root / "store").get("s", 1, {}, compute) / "value.txt").read_text())
"""


def start_racers(root: Path, count: int, how: str) -> list[subprocess.Popen[str]]:
    """Processes that are about to want one missing stage; they wait for the file `go`."""
    for name in ("counts", "ready", "store"):
        (root / name).mkdir(exist_ok=True)
    before = len(list((root / "ready").iterdir()))
    command = [sys.executable, "-c", RACER, str(root), how, str(Path(lgp.__file__).parent)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    wait_for(lambda: len(list((root / "ready").iterdir())) == before + count)
    return racers


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


def outcomes(racers: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    ends = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    return [(racer.returncode, said) for racer, said in zip(racers, ends, strict=True)]


def computed(root: Path) -> int:
    return len(list((root / "counts").iterdir()))


def left_over(root: Path) -> list[Path]:
    return [path for path in (root / "store").glob(".*") if path.is_dir()]


def test_of_eight_racing_processes_one_computes(tmp_path: Path) -> None:
    racers = start_racers(tmp_path, 8, "race")
    (tmp_path / "go").touch()
    assert outcomes(racers) == [(0, "one")] * 8
    assert computed(tmp_path) == 1 and left_over(tmp_path) == []


def test_a_lock_file_left_by_a_dead_host_stops_nobody(tmp_path: Path) -> None:
    final = Store(tmp_path / "store").path("s", 1, {})
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / f".{final.name}.lock").write_text("4711\nhost-that-died\n")
    racers = start_racers(tmp_path, 2, "race")
    (tmp_path / "go").touch()
    assert outcomes(racers) == [(0, "one")] * 2 and computed(tmp_path) == 1


def test_another_takes_over_when_the_computing_process_is_killed(tmp_path: Path) -> None:
    [first] = start_racers(tmp_path, 1, "hang")
    (tmp_path / "go").touch()
    wait_for(lambda: computed(tmp_path) == 1)
    others = start_racers(tmp_path, 7, "race")
    time.sleep(0.3)  # they wait for the lock
    assert computed(tmp_path) == 1 and len(left_over(tmp_path)) == 1
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert outcomes(others) == [(0, "one")] * 7
    assert computed(tmp_path) == 2 and left_over(tmp_path) == []


@pytest.mark.parametrize("how", ["no lock", "no flock"])
def test_without_locks_the_rename_decides(tmp_path: Path, how: str) -> None:
    racers = start_racers(tmp_path, 4, how)
    (tmp_path / "go").touch()
    assert outcomes(racers) == [(0, "one")] * 4  # work is done twice, nothing breaks
    assert computed(tmp_path) >= 2 and left_over(tmp_path) == []
