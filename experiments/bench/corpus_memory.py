"""Does a corpus of 413,932 documents fit? Peak memory of loading, embedding and storing it.

    python experiments/bench/corpus_memory.py [--documents 413932] [--folder FOLDER]

The texts are synthetic, of the size of BRIGHT's largest task, leetcode: 438 million characters in
parquet files of the hub's layout, the mean document 1,058 and the longest 103,665 characters long,
2 % of the documents with characters outside Latin-1 (Python then keeps two bytes for each). They
are written by another process; the one measured runs the stages as `lgp` does: load, embed with
static vectors, store, collapse duplicates, and lay the vectors out as a build needs them. Prints
one JSON object: seconds and the process's peak resident set after each step, in GiB.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TASK = "leetcode"
MEAN, LONGEST, SHARDS = 1058, 103_665, 4
FOREIGN = 0.02  # share of documents with a character outside Latin-1


def write(folder: Path, n: int) -> None:
    """`documents` in four files and `examples` of 142 queries."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghiklmnoprstuvwy_(){}=", k=rng.randint(2, 9)))
             for _ in range(20_000)]  # fmt: skip
    mean_word = sum(map(len, words)) / len(words) + 1

    def content(at: int) -> str:
        # Lengths as real ones are: most short, a few very long, MEAN on average.
        wanted = LONGEST if at == 0 else min(LONGEST, 75 + rng.expovariate(1 / (MEAN - 75)))
        text = f"{at} " + " ".join(rng.choices(words, k=max(1, round(wanted / mean_word))))
        return text + " \u2264" if rng.random() < FOREIGN else text

    schema = pa.schema([("id", pa.string()), ("content", pa.string())])
    (folder / "documents").mkdir(parents=True)
    for shard in range(SHARDS):
        name = folder / "documents" / f"{TASK}-{shard:05d}-of-{SHARDS:05d}.parquet"
        with pq.ParquetWriter(name, schema) as file:
            rows = range(n * shard // SHARDS, n * (shard + 1) // SHARDS)
            for first in range(rows.start, rows.stop, 1000):
                block = range(first, min(first + 1000, rows.stop))
                texts = [content(at) for at in block]
                ids = [f"{TASK}/code_{at}.py" for at in block]
                file.write_table(pa.table({"id": ids, "content": texts}, schema))
    examples = [
        {
            "query": " ".join(rng.choices(words, k=200)), "id": str(at),
            "gold_ids": [f"{TASK}/code_{rng.randrange(n)}.py"],
            "excluded_ids": [f"{TASK}/code_{rng.randrange(n)}.py" for _ in range(236)],
        }
        for at in range(142)
    ]  # fmt: skip
    (folder / "examples").mkdir()
    table = pa.Table.from_pylist([row for row in examples if row["gold_ids"]])
    pq.write_table(table, folder / "examples" / f"{TASK}-00000-of-00001.parquet")


def measure(folder: Path) -> dict[str, Any]:
    """Run the stages up to what a build starts from; peaks are of the whole process so far."""
    from lgp.cli import compose
    from lgp.embed import Kind
    from lgp.stages import Stages

    found: dict[str, Any] = {}
    start = time.perf_counter()

    def note(step: str) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**30
        found[step] = {
            "seconds": round(time.perf_counter() - start, 1), "peak_gib": round(peak, 2)
        }  # fmt: skip

    note("imported")
    stages = Stages(
        compose(["dataset=bright", f"dataset.task={TASK}", f"dataset.path={folder}",
                 f"store_dir={folder / 'store'}", "device=cpu"])
    )  # fmt: skip
    found["documents"] = len(stages.dataset.doc_ids)
    found["characters"] = sum(map(len, stages.dataset.texts))
    note("loaded")
    stages.embed(stages.dataset.texts, Kind.DOCUMENT, None)
    note("embedded_and_stored")
    found["nodes"] = stages.points.n
    note("ready_to_build")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=413_932)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return
    with tempfile.TemporaryDirectory(prefix="lgp-corpus-", dir=args.folder) as folder:
        write(Path(folder), args.documents)
        again = [sys.executable, __file__, "--measure", folder]
        done = subprocess.run(again, stdout=subprocess.PIPE, text=True, check=True)
    print(json.dumps(json.loads(done.stdout.splitlines()[-1]), indent=1))


if __name__ == "__main__":
    main()
