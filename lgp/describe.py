"""`lgp describe`: statistics of collections and models, before any graph (paper Tables 8 to 10).

In: settings as of `lgp` itself. Out: two printed tables, with `--out` as CSV and Markdown, too.
Nothing is embedded or built; what is said of models is `lgp.describe_models`'s.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from lgp.choices import EmbedderKind
from lgp.config import Config, EmbedderConfig
from lgp.data import Dataset, load_dataset
from lgp.describe_models import Model, models
from lgp.evaluate import judged_queries
from lgp.grids import Grid, markdown, print_grid, records_csv
from lgp.packaged import PACKAGED_MODELS, model_path
from lgp.store import write_aside

Compose = Callable[[list[str]], Config]
"""Settings as KEY=VALUE words -> the checked configuration."""


@dataclass(frozen=True)
class Benchmark:
    """What a collection holds (paper Tables 8, 9).

    Attributes:
        n_documents, n_distinct: all documents, and those left when equal ones (text and image
            reference) are collapsed to one node; vectors can be equal beyond that.
        n_queries, n_left_out: queries evaluated, and those left out for want of a relevant
            document. What follows speaks of the evaluated ones.
        n_judged: judgments of any grade. relevant_*: documents of a grade that counts, per query.
        grades: those that occur, "low..high" for more than six.
        n_excluded: (query, document) pairs never to be returned.
        *_words_*: parts between white space, of title and text together, of queries without their
            instruction; image-only ones have 0.
        n_document_images, n_query_images: how many have an image.
        cut_share: documents longer than the embedder's `max_tokens`, over all documents; None =
            not counted, since only embedded models have a tokenizer at hand.
    """

    dataset: str
    n_documents: float
    n_distinct: float
    n_queries: float
    n_left_out: float
    n_judged: float
    relevant_mean: float
    relevant_median: float
    relevant_max: float
    grades: str
    n_excluded: float
    document_words_mean: float
    document_words_median: float
    document_words_p90: float
    query_words_mean: float
    query_words_median: float
    query_words_p90: float
    n_document_images: float
    n_query_images: float
    cut_share: float | None


def benchmark(data: Dataset, max_queries: int | None, embedder: EmbedderConfig) -> Benchmark:
    """A collection's statistics.

    Args:
        max_queries: only the first so many queries are evaluated; None = all.
        embedder: whose bound decides which documents are cut.
    """
    judged, left_out = judged_queries(data.qrels, data.relevance_level)
    known = set(judged)
    rows = [row for row, name in enumerate(data.query_ids) if name in known][:max_queries]
    kept = [data.query_ids[row] for row in rows]
    found = [list(data.qrels[query].values()) for query in kept]
    relevant = [sum(grade >= data.relevance_level for grade in grades) for grades in found]
    grades = sorted({grade for each in found for grade in each})
    shown = ", ".join(map(str, grades)) if len(grades) <= 6 else f"{grades[0]}..{grades[-1]}"
    counts = np.array(relevant or [0])
    images = [data.query_images[row] for row in rows if data.query_images]
    return Benchmark(
        dataset=data.name,
        n_documents=len(data.doc_ids),
        n_distinct=len(data.doc_ids) - data.info["n_duplicate_texts"],
        n_queries=len(kept),
        n_left_out=len(left_out),
        n_judged=sum(map(len, found)),
        relevant_mean=float(counts.mean()),
        relevant_median=float(np.median(counts)),
        relevant_max=int(counts.max()),
        grades=shown,
        n_excluded=sum(len(data.excluded.get(query, ())) for query in kept),
        n_document_images=sum(map(bool, data.images)),
        n_query_images=sum(map(bool, images)),
        cut_share=cut_share(data.texts, embedder),
        **_lengths("document", data.texts),
        **_lengths("query", [data.queries[row] for row in rows]),
    )


def _lengths(side: str, texts: Iterable[str]) -> dict[str, Any]:
    """Words of texts, spread as `Benchmark` has it."""
    words = np.array([len(text.split()) for text in texts] or [0])
    middle, high = np.percentile(words, [50, 90]).tolist()
    spread = {"mean": float(words.mean()), "median": middle, "p90": high}
    return {f"{side}_words_{name}": value for name, value in spread.items()}


def cut_share(texts: Sequence[str], c: EmbedderConfig) -> float | None:
    """The share of documents that an embedder cuts; None where its tokenizer is not embedded."""
    if c.kind is EmbedderKind.wordllama:
        return 0.0  # reads texts whole
    if c.kind is not EmbedderKind.hf or c.model not in PACKAGED_MODELS:
        return None
    try:
        folder = model_path(str(c.model))
    except ModuleNotFoundError:
        return None
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    n_cut = 0
    for first in range(0, len(texts), 1024):
        inputs = [c.document_template.replace("{text}", t) for t in texts[first : first + 1024]]
        found = tokenizer(inputs, verbose=False)["input_ids"]
        n_cut += sum(len(ids) > c.max_tokens for ids in found)
    return n_cut / max(1, len(texts))


def mean_row(rows: Sequence[Benchmark]) -> Benchmark:
    """Every number's mean, each collection weighing the same; a share none has stays None."""
    means: dict[str, Any] = {"dataset": f"mean of {len(rows)}", "grades": ""}
    for name in (each.name for each in fields(Benchmark) if each.name not in means):
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        means[name] = sum(values) / len(values) if len(values) == len(rows) else None
    return Benchmark(**means)


def combinations(words: Sequence[str]) -> list[list[str]]:
    """Settings without lists: `dataset.task=biology,pony` becomes two, as `lgp -m` would run them.

    Raises:
        ValueError: a word that is no setting, or a list of values of anything but the dataset.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        overrides = OverridesParser.create().parse_overrides(list(words))
    except HydraException as error:
        raise ValueError(
            f"{error}; settings are KEY=VALUE, a list of datasets is dataset=scifact,nfcorpus"
        ) from error
    choices: list[list[str]] = []
    for word, override in zip(words, overrides, strict=True):
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices.append([word])
        elif key.split(".")[0] == "dataset":
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            raise ValueError(
                f"{word} lists values of {key}; only dataset and dataset.KEY can, one row each: "
                "give one value, or describe each on its own"
            )
    return [list(chosen) for chosen in product(*choices)]


def parser() -> argparse.ArgumentParser:
    """Every option of the command."""
    p = argparse.ArgumentParser(
        prog="lgp describe",
        description="Statistics of collections and models, without building a graph.",
        epilog="KEY=VALUE words are settings as of lgp itself; dataset and its keys may list "
        "values, one row each: lgp describe dataset=bright dataset.task=biology,pony "
        "embedder=diver_4b_1020 refine=llm llm=qwen3_32b prompt=paper. Models are described from "
        "files on this machine; nothing is asked of a model hub.",
    )
    p.add_argument("--out", type=Path, metavar="FOLDER", help="write CSV and Markdown there, too")
    p.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    return p


def main(argv: Sequence[str], compose: Compose) -> int:
    """Run `lgp describe ...`; returns the exit status."""
    args = parser().parse_intermixed_args(argv)
    try:
        if args.out is not None and args.out.exists() and not args.out.is_dir():
            raise ValueError(f"--out {args.out} is a file; name a folder")
        configs = [compose(words) for words in combinations(args.settings)]
        named = models(configs[0])  # told apart by datasets only
        rows = [
            benchmark(load_dataset(c.dataset), c.dataset.max_queries, c.embedder) for c in configs
        ]
        if len(rows) > 1:
            rows.append(mean_row(rows))
        grids = [benchmark_grid(rows), model_grid(named)]
        if args.out is not None:
            _write(args.out, rows, named, grids)
    except (OSError, ValueError, ImportError) as error:
        print(f"lgp describe: {error}", file=sys.stderr)
        return 2
    console = Console()
    for grid in grids:
        print_grid(grid, console)
    return 0


def _write(
    folder: Path, rows: Sequence[Benchmark], named: Sequence[Model], grids: Sequence[Grid]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_aside(folder / "benchmarks.csv", records_csv([asdict(row) for row in rows]))
    write_aside(folder / "models.csv", records_csv([asdict(row) for row in named]))
    lines = [line for grid in grids for line in markdown(grid)]
    write_aside(folder / "describe.md", "\n".join(lines))


def benchmark_grid(rows: Sequence[Benchmark]) -> Grid:
    """Collections as text, a row each; the last one, of several, is their mean."""
    body = [
        (
            _line(r.dataset), _number(r.n_documents), _number(r.n_distinct), _number(r.n_queries),
            _number(r.n_left_out), _number(r.n_judged),
            _numbers(r.relevant_mean, r.relevant_median, r.relevant_max), r.grades,
            _number(r.n_excluded),
            _numbers(r.document_words_mean, r.document_words_median, r.document_words_p90),
            _numbers(r.query_words_mean, r.query_words_median, r.query_words_p90),
            _numbers(r.n_document_images, r.n_query_images),
            "-" if r.cut_share is None else f"{100 * r.cut_share:.1f} %",
        )
        for r in rows
    ]  # fmt: skip
    last = len(rows) - 1
    return Grid(
        title="Collections. relevant: documents a query, mean / median / max; words: mean / "
        "median / 90th percentile; images: documents / queries",
        columns=(
            "dataset", "documents", "distinct", "queries", "left out", "judged", "relevant",
            "grades", "excluded", "document words", "query words", "images", "cut",
        ),
        optional=("cut", "images", "excluded", "left out", "grades", "judged", "distinct"),
        body=tuple(body),
        groups=tuple(int(last > 0 and row == last) for row in range(len(rows))),
    )  # fmt: skip


def model_grid(named: Sequence[Model]) -> Grid:
    """Models as text, a row for each role."""
    body = [
        tuple(
            _number(value) if isinstance(value, int) else _line(value or "")
            for value in asdict(replace(row, digest=row.digest[:16])).values()
        )
        for row in named
    ]
    return Grid(
        title="Models. max tokens: inputs are cut there; not local: the weights are not on this "
        "machine",
        columns=tuple(each.name.replace("_", " ") for each in fields(Model)),
        optional=(),
        body=tuple(body),
        groups=tuple(range(len(named))),
    )


def _line(text: str) -> str:
    """Text from files on one line, as terminals and Markdown tables need it."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _numbers(*values: float) -> str:
    return " / ".join(map(_number, values))


def _number(value: float) -> str:
    """Whole numbers whole, others to one decimal."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
