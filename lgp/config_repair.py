"""The knobs of a repair and of its latent queries, with their checks; a part of `lgp.config`."""

from __future__ import annotations

from dataclasses import dataclass, field

from lgp.choices import LatentQueries, RepairSource
from lgp.config_llm import ConfigError
from lgp.config_llm import at_least as _at_least


@dataclass
class RepairConfig:
    queries: list[LatentQueries] = field(
        default_factory=lambda: [LatentQueries.title, LatentQueries.first_sentence]
    )
    width: int = 10  # of the searches whose misses are repaired
    targets: int = 3  # exact nearest documents a search must return
    source: RepairSource = RepairSource.target
    batch_size: int = 64  # queries searched on one state of the graph
    passes: int = 1
    edit_limit: int | None = None  # edges added in all
    node_limit: int | None = None  # edges added at a node; null = its degree bound
    protect: bool = False  # lgp+repair: a repair may not give up the selector's edges
    held_out: float = 0.1  # share of queries that are only measured: do unseen ones gain, too?
    similar: float = 0.95  # cosine to a test query from which a latent one is counted as its twin
    file: str | None = None  # log: a query a line, or JSON lines with "text"; lgp: its JSON lines
    split: str = "train"  # train: qrels/<split>.tsv names the queries
    per_document: int = 1  # llm: queries written for a document
    document_tokens: int = 64  # llm: a document is cut to this
    new_tokens: int = 24  # llm: tokens a query may have
    seed: int = 0  # of the order of queries and of the held-out ones

    def __post_init__(self) -> None:
        for key in ("width", "targets", "batch_size", "passes", "per_document", "document_tokens",
                    "new_tokens"):  # fmt: skip
            _at_least(f"repair.{key}", getattr(self, key), 1, "raise it")
        for key in ("edit_limit", "node_limit"):
            if (value := getattr(self, key)) is not None:
                _at_least(f"repair.{key}", value, 1, "leave it null for no bound")
        if self.targets > self.width:
            raise ConfigError(
                f"repair.targets={self.targets} is above repair.width={self.width}: no result "
                "could hold them all; raise repair.width"
            )
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"repair.held_out={self.held_out} is outside [0, 1); set it so")
        if not self.queries or len(set(self.queries)) < len(self.queries):
            said = [q.value for q in self.queries]
            raise ConfigError(f"repair.queries={said} must name different sources, at least one")
        reads_file = {LatentQueries.log, LatentQueries.lgp} & set(self.queries)
        if reads_file and not self.file:
            readers = " and ".join(sorted(q.value for q in reads_file))
            raise ConfigError(f"repair.file is not set; repair.queries={readers} reads it")
        if len(reads_file) > 1:
            raise ConfigError("repair.queries names log and lgp, but there is one repair.file")
