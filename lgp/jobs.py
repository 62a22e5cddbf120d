"""`lgp jobs FILE`: a sweep written out, one job a line, for SLURM arrays or any other scheduler.

In: lines of words as after `lgp`; empty ones and all from a `#` on do not count, jobs are
numbered from 0. Out: what each job's state is, the numbers of those not finished, or one job run.
Job N's folder is RUN_DIR/N, as in a multirun, so `lgp report RUN_DIR` reads both alike.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lgp.config import Config
from lgp.pipeline import finished
from lgp.results import ERROR_FILE

Compose = Callable[[list[str]], Config]
"""Words -> the checked configuration."""
Launch = Callable[[list[str]], int]
"""Runs `lgp WORDS...`; returns the exit status."""


@dataclass(frozen=True)
class Job:
    """A line of the file.

    Attributes:
        number: counts jobs, from 0. line: counts lines of the file, from 1. text: without comment.
    """

    number: int
    line: int
    text: str

    def words(self) -> list[str]:
        """As a shell would split it (ValueError: an open quote)."""
        return shlex.split(self.text)


def read_jobs(path: Path) -> list[Job]:
    """The jobs of a file (ValueError: no such file, no job in it)."""
    if not path.is_file():
        raise ValueError(f"{path} is no file; give one of lines like: dataset=toy refine=uniform")
    lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    filled = [(at, text) for at, text in enumerate(lines, 1) if text]
    if not filled:
        raise ValueError(f"{path} has no job; write one a line")
    return [Job(number, line, text) for number, (line, text) in enumerate(filled)]


def ranges(numbers: Sequence[int]) -> str:
    """Rising numbers as `sbatch --array` takes them: 0-2,5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def state(config: Config, folder: Path) -> str:
    """`finished`, `failed: ...` or `missing`: what a job's folder says."""
    if finished(config, folder):
        return "finished"
    error = folder / ERROR_FILE
    if error.is_file():
        said = error.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"failed: {said[-1] if said else 'no message'}"
    return "missing"


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="lgp jobs",
        description="List the jobs of a file and their states; exit status 1 where one is not "
        "finished, 2 where a line is broken.",
    )
    p.add_argument("file", type=Path, help="a job a line: words as after `lgp`")
    only = p.add_mutually_exclusive_group()
    only.add_argument("--missing", action="store_true", help="print the unfinished as 0-2,5")
    only.add_argument("--run", type=int, metavar="N", help="run job N into RUN_DIR/N")
    p.add_argument("words", nargs="*", metavar="KEY=VALUE", help="for every job: run_dir=... ")
    return p


def main(argv: Sequence[str], compose: Compose, launch: Launch) -> int:
    """Run `lgp jobs ...`; returns the exit status."""
    args = parser().parse_intermixed_args(argv)
    try:
        jobs = read_jobs(args.file)
        if args.run is not None and not 0 <= args.run < len(jobs):
            raise ValueError(f"--run {args.run} is outside 0..{len(jobs) - 1}, the jobs there are")
    except ValueError as error:
        print(f"lgp jobs: {error}", file=sys.stderr)
        return 2
    chosen = jobs if args.run is None else [jobs[args.run]]
    configs: dict[Job, Config] = {}
    for job in chosen:
        try:
            configs[job] = compose([*job.words(), *args.words])
            if configs[job].table is not None:
                raise ValueError("an experiment= with a table is a sweep of its own; run it alone")
        except ValueError as error:
            print(f"lgp jobs: {args.file}:{job.line} (job {job.number}): {error}", file=sys.stderr)
    broken = len(configs) < len(chosen)
    if args.run is not None:
        [job] = chosen
        return 2 if broken else _run(job, configs[job], args.words, launch)
    states = {job: state(c, Path(c.run_dir) / str(job.number)) for job, c in configs.items()}
    if args.missing:
        if not broken:
            print(ranges([job.number for job, text in states.items() if text != "finished"]))
        return 2 if broken else 0
    for job in chosen:
        print(f"{job.number:4} {states.get(job, 'broken'):10} {job.text}")
    return 2 if broken else int(any(text != "finished" for text in states.values()))


def _run(job: Job, config: Config, words: Sequence[str], launch: Launch) -> int:
    folder = Path(config.run_dir) / str(job.number)
    status = launch(["-m", *job.words(), *words, f"hydra.sweep.subdir={job.number}"])
    return status or int((folder / ERROR_FILE).is_file())  # a multirun's failing job only writes it
