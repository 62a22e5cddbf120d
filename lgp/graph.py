"""The neighbor table, its file, its checks and its structure statistics (paper Table 15).

In: an int32 table. Out: the same, saved, loaded, verified, described. How it was built is not
known here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from lgp.distance import Metric

FORMAT = "lgp-graph"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Graph:
    """A directed graph of bounded out-degree over N nodes (the paper's G, §2).

    Attributes:
        neighbors: int32 [N, R], each row padded with -1 at its end.
        entry_node: where every search starts.
        metric: the D it was built with.
        alpha: the prune slack it was built with; later reciprocal prunes use it again.
    """

    neighbors: Tensor
    entry_node: int
    metric: Metric = Metric.cosine
    alpha: float = 1.2

    @property
    def n(self) -> int:
        return int(self.neighbors.shape[0])

    @property
    def max_degree(self) -> int:
        return int(self.neighbors.shape[1])

    def degrees(self) -> Tensor:
        """Out-degrees, int64 [N]."""
        return (self.neighbors >= 0).sum(1)

    def to(self, device: torch.device | str) -> Graph:
        return Graph(self.neighbors.to(device), self.entry_node, self.metric, self.alpha)

    def digest(self) -> str:
        """sha256 of table and entry node: equal digests are equal graphs."""
        hasher = hashlib.sha256(f"{tuple(self.neighbors.shape)} {self.entry_node} ".encode())
        hasher.update(self.neighbors.cpu().contiguous().numpy().tobytes())
        return hasher.hexdigest()


def validate(graph: Graph) -> None:
    """Check every invariant of a table (ids, padding at the end, no loops, no repeats).

    Raises:
        ValueError: naming the first offending node.
    """
    rows = graph.neighbors
    if rows.ndim != 2 or rows.dtype != torch.int32:
        raise ValueError(f"neighbors are {rows.dtype} {tuple(rows.shape)}; int32 [N, R] is needed")
    if not 0 <= graph.entry_node < graph.n:
        raise ValueError(f"entry_node={graph.entry_node} is outside 0..{graph.n - 1}")
    check_rows(rows, torch.arange(graph.n, device=rows.device), graph.n)


def check_rows(rows: Tensor, nodes: Tensor, n: int) -> None:
    """Check the neighbors, int32 [X, R], of some nodes, int64 [X], of N (errors as `validate`)."""

    def refuse(bad: Tensor, what: str) -> None:
        hit = bad.any(1).nonzero().flatten()
        if len(hit):
            row = int(hit[0])
            raise ValueError(
                f"{len(hit)} rows hold {what}; first node {int(nodes[row])}: {rows[row].tolist()}"
            )

    refuse(rows < -1, "an id below -1")
    refuse(rows >= n, f"an id above the last node {n - 1}")
    refuse(rows == nodes.unsqueeze(1), "an edge to itself")
    refuse((rows[:, :-1] < 0) & (rows[:, 1:] >= 0), "an id after padding")
    ordered = rows.sort(1).values
    refuse((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0), "a repeated id")


def save_graph(graph: Graph, path: Path) -> None:
    """Write a graph file: safetensors with a version and a checksum."""
    header = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "entry_node": graph.entry_node,
        "metric": graph.metric.value,
        "alpha": graph.alpha,
    }
    save_sealed(path, {"neighbors": graph.neighbors}, header, graph.digest())


def load_graph(path: Path) -> Graph:
    """Read and verify a graph file.

    Raises:
        ValueError: not a graph file, another version, truncated, or a wrong checksum.
    """

    def make(tensors: dict[str, Tensor], header: dict[str, Any]) -> Graph:
        rows, metric = tensors["neighbors"], Metric(header["metric"])
        return Graph(rows, whole(header["entry_node"]), metric, float(header["alpha"]))

    return load_sealed(path, FORMAT, FORMAT_VERSION, make, validate)


class Sealable(Protocol):
    def digest(self) -> str: ...


Made = TypeVar("Made", bound=Sealable)


def save_sealed(
    path: Path, tensors: dict[str, Tensor], header: dict[str, Any], digest: str
) -> None:
    """Write tensors under a header that also seals their digest."""
    kept = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    sealed = header | {"sha256": _seal(header, digest)}
    save_file(kept, path, {"lgp": json.dumps(sealed)})


def load_sealed(
    path: Path,
    form: str,
    version: int,
    make: Callable[[dict[str, Tensor], dict[str, Any]], Made],
    check: Callable[[Made], None],
) -> Made:
    """Read what `save_sealed` wrote, and verify it.

    Args:
        make: the object from its tensors and header. check: ValueError for impossible content.
    Raises:
        ValueError: naming the file, for anything that is not such a file, whole and possible.
    """
    name = form.replace("-", " ")
    if not Path(path).is_file():
        raise ValueError(f"{path} is not a file; give the path of an {name} file")
    try:
        with safe_open(path, "pt") as file:
            header = dict(json.loads((file.metadata() or {}).get("lgp", "{}")))
            names = file.keys() if header.get("format") == form else []
            tensors = {key: file.get_tensor(key) for key in names}
    except Exception as error:
        raise ValueError(f"{path} is not a readable {name} file: {error}") from error
    if (header.get("format"), header.get("version")) != (form, version):
        raise ValueError(
            f"{path} has format {header.get('format')} version {header.get('version')}; "
            f"{form} version {version} is read here: rebuild it"
        )
    claimed = header.pop("sha256", None)
    try:
        made = make(tensors, header)
        intact = _seal(header, made.digest()) == claimed
    except (KeyError, TypeError, ValueError):
        intact = False
    if not intact:
        raise ValueError(f"{path} does not match its own checksum; it is damaged: rebuild it")
    try:
        check(made)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return made


def whole(value: Any) -> int:
    """An integer of a header (TypeError: anything else)."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value


def _seal(header: dict[str, Any], digest: str) -> str:
    """Checksum of a file: its content's digest and every header field."""
    text = json.dumps(header, sort_keys=True) + digest
    return hashlib.sha256(text.encode()).hexdigest()


def reachable(graph: Graph) -> Tensor:
    """Which nodes a walk from the entry node can reach, bool [N]."""
    found = torch.zeros(graph.n, dtype=torch.bool, device=graph.neighbors.device)
    found[graph.entry_node] = True
    front = torch.tensor([graph.entry_node], device=graph.neighbors.device)
    while len(front):
        targets = graph.neighbors[front].flatten().long()
        targets = targets[targets >= 0].unique()
        front = targets[~found[targets]]
        found[front] = True
    return found


def describe(graph: Graph) -> dict[str, float]:
    """Structure statistics: degrees, in-degrees, reachability (paper Table 15)."""
    degree = graph.degrees()
    targets = graph.neighbors[graph.neighbors >= 0].long()
    in_degree = torch.bincount(targets, minlength=graph.n)
    return {
        "n_nodes": graph.n,
        "n_edges": int(degree.sum()),
        "degree_mean": float(degree.double().mean()),
        "degree_min": int(degree.min()),
        "degree_max": int(degree.max()),
        "in_degree_max": int(in_degree.max()),
        "n_in_degree_zero": int((in_degree == 0).sum()),
        "n_unreachable": int((~reachable(graph)).sum()),
    }


def changed_neighborhoods(before: Graph, after: Graph) -> float:
    """Share of nodes whose neighbor *sets* differ (paper Table 15)."""
    a, b = before.neighbors.sort(1).values, after.neighbors.sort(1).values
    return float((a != b).any(1).double().mean())
