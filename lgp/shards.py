"""A refinement split over jobs: each shard decides for its nodes, one job applies all decisions.

In: a finished index, a `Refiner`, the number of a shard. Out: a folder with the shard's decisions;
from the folders of all shards, a selector that replays them. Shards only decide. Edges are placed
by the job that has all decisions, on the same snapshot and in node order, so that the graph is that
of a single process bit for bit. The split is of whole blocks of anchors, since a block's prompts
form the same batches wherever it is asked; shard k takes blocks k, k + K, ..., since neighbors in a
corpus are often alike in length, and ranges would give some shards all the long ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from lgp.distance import Points
from lgp.index import Index, base_layer
from lgp.refine.hnsw import searcher
from lgp.refine.listwise import Listwise
from lgp.refine.llm_select import Likelihood
from lgp.refine.log import Decisions, EditLog, Edits
from lgp.refine.post import anchor_blocks
from lgp.refine.select import Recorded, Selector
from lgp.refine.step import Account, Refiner
from lgp.store import MANIFEST, digest_of, facts

DECISIONS_FILE = "decisions.safetensors"
QUERIES_FILE = "latent_queries.jsonl"


def shard_blocks(blocks: Sequence[Tensor], shard: int, shards: int) -> list[Tensor]:
    """The blocks of anchors that a shard decides about; none where there are fewer than shards."""
    return list(blocks[shard::shards])


def decide(
    folder: Path,
    index: Index,
    points: Points,
    refiner: Refiner,
    width: int,
    shard: int,
    shards: int,
) -> Mapping[str, Any]:
    """Ask the selector about a shard's nodes and write what it said; the index stays as it is.

    Args:
        refiner: of the whole refinement; its `eligible` nodes are what is split.
        width: of the search whose visited nodes are U_i.
    Returns:
        facts for the stage's manifest: seconds, account, digest of the answers.
    """
    base, find = base_layer(index), searcher(index, points, width)
    anchors = refiner.eligible.nonzero().flatten().to(points.device)
    own = shard_blocks(anchor_blocks(anchors, base.n), shard, shards)
    start = time.perf_counter()
    with tqdm(total=sum(map(len, own)), desc=f"shard {shard} of {shards}", unit="node") as bar:
        for block in own:
            refiner(base.neighbors, block, find(base, block))
            bar.update(len(block))
    header = {"when": "post", "base_sha256": base.digest(), "shard": shard, "shards": shards}
    log = EditLog(Edits.empty(), refiner.all_decisions(), header)
    log.save(folder / DECISIONS_FILE)
    if isinstance(refiner.selector, Listwise):
        refiner.selector.save_queries(folder / QUERIES_FILE)
    return {
        "seconds": time.perf_counter() - start,
        "account": asdict(refiner.account),
        "answers_sha256": answers_digest(refiner.selector),
    }


def answers_digest(selector: Selector) -> str | None:
    """sha256 of the logged answers that a language model's decisions rest on; None of others."""
    if isinstance(selector, Likelihood | Listwise):
        return selector.answers.digest(selector.keys_used)
    return None


@dataclass(frozen=True)
class Decided:
    """What all shards said.

    Attributes:
        decisions: in node order. account: summed over shards; seconds: likewise.
        answers_sha256: over the shards' digests.
        queries: lines of latent queries, in node order; None where no selector can write any.
    """

    decisions: Decisions
    account: Account
    seconds: float
    answers_sha256: str | None
    queries: Sequence[str] | None

    def selector(self, n: int) -> Recorded:
        """Replays the decisions for a graph of n nodes."""
        return Recorded.from_log(EditLog(Edits.empty(), self.decisions, {}), n)

    def check(self, made: Decisions) -> None:
        """Refuse a result whose edits are not those the shards foresaw (ValueError)."""
        for name in ("anchors", "placed"):
            if not torch.equal(getattr(self.decisions, name), getattr(made, name)):
                raise ValueError(
                    f"applying the shards' decisions gave other {name} than the shards saw: they "
                    "ran on another backend or device; run shards and merge on the same kind, or "
                    "drop refine.shards"
                )

    def save_queries(self, folder: Path) -> None:
        """Write the latent queries, where there may be any."""
        if self.queries is not None:
            (folder / QUERIES_FILE).write_text("".join(self.queries), encoding="utf-8")


def gather_shards(stages: Sequence[Path]) -> Decided:
    """Join the decisions of all shards.

    Args:
        stages: the folders of shards 0, 1, ...
    Raises:
        ValueError: some are not finished; it names them and says how to run them.
    """
    missing = [str(k) for k, stage in enumerate(stages) if not (stage / MANIFEST).is_file()]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(stages)} shards have not decided yet: {', '.join(missing)}; "
            f"run this command with refine.shard={missing[0]}"
            + (" (and so on)" if len(missing) > 1 else "")
            + ", then again without refine.shard"
        )
    said = [facts(stage) for stage in stages]
    accounts = [Account(**one["account"]) for one in said]
    digests = [one["answers_sha256"] for one in said]
    files = [path for stage in stages if (path := stage / QUERIES_FILE).is_file()]
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines(True)]
    logs = [EditLog.load(stage / DECISIONS_FILE) for stage in stages]
    joined = Decisions.join([log.decisions for log in logs])
    order = joined.anchors.argsort(stable=True)
    return Decided(
        Decisions(*(getattr(joined, f.name)[order] for f in fields(Decisions))),
        Account(**{f.name: sum(getattr(a, f.name) for a in accounts) for f in fields(Account)}),
        sum(one["seconds"] for one in said),
        digest_of(digests) if None not in digests else None,
        sorted(lines, key=_node_of) if files else None,
    )


def _node_of(line: str) -> int:
    return int(json.loads(line)["node"])
