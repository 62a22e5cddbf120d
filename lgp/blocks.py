"""Embedding in blocks: what is finished stays finished, and several processes share the work.

In: a plan, that is batches of inputs and a function that embeds one. Out: a row for each input.
A block is a run of batches whose rows are kept in a file of their own, so that a killed job goes
on where it was, and every process that works on the same folder takes blocks nobody else has.
What is embedded, and how, is unknown here. Batches are never regrouped: the bits are the same
however often a job was killed and however many processes there were.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from lgp.stopping import stop_if_asked
from lgp.store import locked
from lgp.vectors import Vectors

log = logging.getLogger(__name__)

BLOCK_INPUTS, BLOCK_COST = 4096, 2_000_000
"""Bounds on a block: inputs, and the cost (tokens) of its batches; minutes on one GPU."""

POLL_S = 0.2
"""How often a process that found nothing to do looks whether the others' blocks are there."""


@dataclass(frozen=True)
class Plan:
    """Work cut into batches, a pure function of inputs and settings.

    Attributes:
        batches: places of inputs; every input is in one batch, once.
        embed: float32 [len(batch), D] of one batch, in its order, not normalised.
        costs: of each input, in `unit`, for the progress bar and the size of blocks.
    """

    batches: Sequence[Sequence[int]]
    embed: Callable[[Sequence[int]], Vectors]
    costs: Sequence[int]
    label: str = "embedding"
    unit: str = "tok"

    @property
    def n(self) -> int:
        return len(self.costs)


def plan_blocks(plan: Plan) -> list[range]:
    """Runs of batches: a block ends when it has `BLOCK_INPUTS` inputs or costs `BLOCK_COST`."""
    blocks: list[range] = []
    start = inputs = cost = 0
    for at, batch in enumerate(plan.batches):
        inputs += len(batch)
        cost += sum(plan.costs[place] for place in batch)
        if inputs >= BLOCK_INPUTS or cost >= BLOCK_COST or at + 1 == len(plan.batches):
            blocks.append(range(start, at + 1))
            start, inputs, cost = at + 1, 0, 0
    return blocks


def embed_plan(plan: Plan, progress: bool = True) -> Vectors:
    """All rows, float32 [n, D], in order of the inputs; nothing is written."""
    rows: Vectors | None = None
    with _bar(plan, progress) as bar:
        for batch in plan.batches:
            found = plan.embed(batch)
            if rows is None:  # D is not in every model's config
                rows = np.empty((plan.n, found.shape[1]), dtype=np.float32)
            rows[batch] = found
            bar.update(sum(plan.costs[place] for place in batch))
    return np.empty((0, 0), dtype=np.float32) if rows is None else rows


@dataclass
class BlockFiles:
    """The finished blocks of a plan in a folder that any number of processes may work in.

    Attributes:
        is_over: whether the whole stage has been finished elsewhere, so that nothing is left.
    """

    plan: Plan
    folder: Path
    is_over: Callable[[], bool] = lambda: False
    blocks: list[range] = field(init=False)

    def __post_init__(self) -> None:
        self.blocks = plan_blocks(self.plan)

    def fill(self, progress: bool = True) -> int:
        """Embed blocks until all are there, by whomever; how many this process embedded.

        A block is locked while a process works on it. A killed process loses its locks, so its
        block is taken up by another. Where the file system has no locks a block may be embedded
        twice, with the same bits.
        """
        from filelock import Timeout

        self.folder.mkdir(parents=True, exist_ok=True)
        done = 0
        with _bar(self.plan, progress) as bar:
            for block in self.blocks:
                if self._path(block).is_file():
                    bar.update(self._cost(block))
            while (missing := self._missing()) and not self.is_over():
                before = done
                for block in missing:
                    try:
                        with locked(self._path(block).with_suffix(".lock"), 0):
                            if not self._path(block).is_file():
                                self._write(block)
                                done += 1
                                bar.update(self._cost(block))
                                stop_if_asked()
                    except Timeout:
                        continue  # somebody is at it
                    except FileNotFoundError:
                        if not self.is_over():  # the folder goes when the stage is there
                            raise
                if done == before:
                    time.sleep(POLL_S)
        return done

    def join(self) -> Vectors:
        """All rows, float32 [n, D], in order of the inputs."""
        from safetensors.numpy import load_file

        rows: Vectors | None = None
        for block in self.blocks:
            found = load_file(self._path(block))["vectors"]
            if rows is None:
                rows = np.empty((self.plan.n, found.shape[1]), dtype=np.float32)
            rows[self._places(block)] = found
        assert rows is not None
        return rows

    def _write(self, block: range) -> None:
        from safetensors.numpy import save

        found = np.concatenate([self.plan.embed(self.plan.batches[at]) for at in block])
        path = self._path(block)
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        with aside.open("wb") as file:
            file.write(save({"vectors": found}))
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)

    def _missing(self) -> list[range]:
        return [block for block in self.blocks if not self._path(block).is_file()]

    def _path(self, block: range) -> Path:
        return self.folder / f"batches-{block.start}-{block.stop}.safetensors"

    def _places(self, block: range) -> list[int]:
        return [place for at in block for place in self.plan.batches[at]]

    def _cost(self, block: range) -> int:
        return sum(self.plan.costs[place] for place in self._places(block))


def _bar(plan: Plan, progress: bool) -> tqdm:  # type: ignore[type-arg,unused-ignore]
    # The bar counts costs: texts come longest first, so a rate in texts would keep changing.
    return tqdm(
        total=sum(plan.costs), desc=plan.label, unit=plan.unit, unit_scale=True,
        disable=not progress,
    )  # fmt: skip
