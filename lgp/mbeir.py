"""M-BEIR, the benchmark of multimodal retrieval: 16 tasks with candidate pools of their own.

Input is a task's name and a folder in the hub's layout (`query/<split>/*.jsonl`,
`cand_pool/local/*.jsonl`, `qrels/<split>/*.txt`, `instructions/query_instructions.tsv`,
`mbeir_images/`); output is one `Dataset` whose images are references. The qrels files are the
judgments; lists of positives in the query files are only checked against them.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lgp.beir import DataError, some
from lgp.choices import EmptyDocuments, Instruction, MbeirTask, UnknownIds
from lgp.dataset import Dataset, judged_dataset
from lgp.hub import HubSource, find_folder
from lgp.images import ImageFolder
from lgp.mbeir_files import (
    Entry,
    normalise,
    read_entries,
    read_instructions,
    read_mbeir_qrels,
)

log = logging.getLogger(__name__)

SOURCE = HubSource("TIGER-Lab/M-BEIR", "3298f3a07873e45c9e7f5cd0175b90065ff8cf0b")

SIZES = {
    MbeirTask.visualnews_task0: (542_246, 19_995),
    MbeirTask.mscoco_task0: (5_000, 24_809),
    MbeirTask.fashion200k_task0: (201_824, 1_719),
    MbeirTask.webqa_task1: (544_457, 2_455),
    MbeirTask.edis_task2: (1_047_067, 3_241),
    MbeirTask.webqa_task2: (403_196, 2_511),
    MbeirTask.visualnews_task3: (537_568, 20_000),
    MbeirTask.mscoco_task3: (24_809, 5_000),
    MbeirTask.fashion200k_task3: (61_707, 4_889),
    MbeirTask.nights_task4: (40_038, 2_120),
    MbeirTask.oven_task6: (676_667, 50_004),
    MbeirTask.infoseek_task6: (611_651, 11_323),
    MbeirTask.fashioniq_task7: (74_381, 6_003),
    MbeirTask.cirr_task7: (21_551, 4_170),
    MbeirTask.oven_task8: (335_135, 14_741),
    MbeirTask.infoseek_task8: (481_782, 17_593),
}
"""Candidates of the local pool and test queries of each task."""

MODALITIES = {
    0: ("text", "image"),
    1: ("text", "text"),
    2: ("text", "image,text"),
    3: ("image", "text"),
    4: ("image", "image"),
    6: ("image,text", "text"),
    7: ("image,text", "image"),
    8: ("image,text", "image,text"),
}
"""What a query and its positives consist of, by the number at the end of a task's name."""


def load_mbeir(
    task: MbeirTask,
    path: str | None = None,
    split: str = "test",
    source: HubSource = SOURCE,
    images: str | None = None,
    form: Instruction = Instruction.none,
    sample_queries: int | None = None,
    seed: int = 0,
    empty: EmptyDocuments = EmptyDocuments.embed,
    unknown_ids: UnknownIds = UnknownIds.error,
) -> Dataset:
    """Load one task with its local pool.

    Text is normalised as UniIR does (`normalise`). OVEN and InfoSeek judge documents of each
    other's; as in UniIR's evaluation those leave the judgments (counted). Queries whose positives
    are missing altogether are not judged.

    Args:
        path: folder with the hub's layout; None = the text files from the hub.
        images: folder that holds `mbeir_images/` or tar files of it; None = `path`.
        form: `uniir` puts one of the task's instructions before each query, chosen by seed.
        sample_queries: so many judged queries, drawn uniformly (`sampled`); None = all.
    Raises:
        DataError: missing files, a malformed line, repeated or unknown ids, or no instruction.
    """
    pool = f"{task.value}_test" if task.value.startswith("mscoco") else task.value
    names = [
        f"query/{split}/mbeir_{task.value}_{split}.jsonl",
        f"cand_pool/local/mbeir_{pool}_cand_pool.jsonl",
        f"qrels/{split}/mbeir_{task.value}_{split}_qrels.txt",
        "instructions/query_instructions.tsv",
    ]
    folder = find_folder(path, source, names)
    queries = read_entries(folder / names[0], "qid", "query_txt", "query_img_path")
    candidates = read_entries(folder / names[1], "did", "txt", "img_path")
    qrels, n_other = _own_dataset(task, read_mbeir_qrels(folder / names[2]))
    n_differ = _compare_positives(task, queries, qrels)

    judged = [q for q in queries if any(grade > 0 for grade in qrels.get(q, {}).values())]
    wanted = sampled(judged, sample_queries, seed)
    texts = {query: normalise(entry.text) for query, entry in queries.items()}
    heads: dict[str, str] = {}
    if form is Instruction.uniir:
        prompts = read_instructions(folder / names[3]).get(_key(task, queries), ())
        for query in wanted:
            heads[query], texts[query] = _instructed(prompts, task, query, queries[query], seed)
    refs = {did: entry.image for did, entry in candidates.items()}
    asked = {query: entry.image for query, entry in queries.items()}
    dataset = judged_dataset(
        f"mbeir-{task.value}",
        [(did, "", normalise(entry.text)) for did, entry in candidates.items()],
        texts, qrels, {}, names[2], empty, unknown_ids, 1,
        {
            "split": split, "source": path or f"{source.name}@{source.revision}",
            "instruction": form.value, "seed": seed, "n_all_queries": len(queries),
            "n_judged_queries": len(judged), "sampled": len(wanted) < len(judged),
            "n_other_dataset": n_other, "n_positives_differ": n_differ,
            "modalities": dict(Counter(entry.modality for entry in candidates.values())),
        },
        images=refs,
        query_images=asked,
        image_folder=_image_folder(images or path, [*refs.values(), *asked.values()]),
        instructions=heads,
        only=wanted,
    )  # fmt: skip
    _compare_sizes(task, split, len(candidates), len(queries), len(wanted))
    return dataset


def sampled(queries: Iterable[str], size: int | None, seed: int) -> frozenset[str]:
    """A uniform sample of query ids without replacement, or all of them.

    The ids with the smallest hashes of (seed, id): the same on every machine, whatever the order
    of the file, and a smaller sample is a part of a larger one.
    """
    ranked = sorted(queries, key=lambda query: _hashed(seed, "sample", query))
    return frozenset(ranked if size is None else ranked[:size])


def _key(task: MbeirTask, queries: Iterable[str]) -> tuple[str, str, str]:
    dataset = next(iter(queries)).split(":")[0]
    return (dataset, *MODALITIES[int(task.value[-1])])


def _instructed(
    prompts: Sequence[str], task: MbeirTask, query: str, entry: Entry, seed: int
) -> tuple[str, str]:
    """(instruction, text) of a query, which joined are what UniIR's models read."""
    if not prompts:
        raise DataError(
            f"instructions/query_instructions.tsv has no instruction for {task.value}; set "
            "dataset.instruction=none"
        )
    prompt = prompts[_hashed(seed, "instruction", query) % len(prompts)]
    # The whole is normalised, not its parts, so the query's own first letter stays as written.
    whole = normalise(f"{prompt} {entry.text}")
    cut = len(prompt) + (len(whole) > len(prompt))
    return whole[:cut], whole[cut:]


def _own_dataset(
    task: MbeirTask, qrels: dict[str, dict[str, int]]
) -> tuple[dict[str, dict[str, int]], int]:
    """Judgments of OVEN and InfoSeek without the other's documents, and how many went."""
    if not task.value.startswith(("oven", "infoseek")):
        return qrels, 0
    own = {
        query: {did: grade for did, grade in found.items() if _same_dataset(query, did)}
        for query, found in qrels.items()
    }
    return own, sum(map(len, qrels.values())) - sum(map(len, own.values()))


def _same_dataset(query: str, did: str) -> bool:
    return query.split(":")[0] == did.split(":")[0]


def _compare_positives(
    task: MbeirTask, queries: Mapping[str, Entry], qrels: Mapping[str, Mapping[str, int]]
) -> int:
    """Count the queries whose listed positives are not the judged ones, and warn of them."""
    both = task.value.startswith(("oven", "infoseek"))
    differ = [
        query
        for query, entry in queries.items()
        if {did for did in entry.positives if not both or _same_dataset(query, did)}
        != {did for did, grade in qrels.get(query, {}).items() if grade > 0}
    ]
    if differ:
        log.warning(
            "mbeir %s: %d of %d queries list other positives in pos_cand_list than the qrels file "
            "judges (%s); the qrels file counts", task.value, len(differ), len(queries),
            some(differ),
        )  # fmt: skip
    return len(differ)


def _image_folder(folder: str | None, refs: Iterable[str]) -> ImageFolder | None:
    """Where the images are; None, with a warning, where they are needed and not at hand."""
    if not any(refs):
        return None
    root = Path(folder) if folder else None
    tars = tuple(sorted([*root.glob("*.tar"), *root.glob("*.tar.part-*")])) if root else ()
    if root and ((root / "mbeir_images").is_dir() or tars):
        return ImageFolder(root, tars)
    log.warning(
        "no mbeir_images/ and no .tar in %s: documents can be embedded from precomputed vectors "
        "only. The hub has the images as pieces of one archive: cat mbeir_images.tar.gz.part-* | "
        "tar -xz, then dataset.images=FOLDER that holds mbeir_images", folder or "the hub's cache",
    )  # fmt: skip
    return None


def _hashed(seed: int, use: str, query: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{use}:{query}".encode()).digest())


def _compare_sizes(task: MbeirTask, split: str, n_docs: int, n_queries: int, n_wanted: int) -> None:
    """Say the counts, and warn where they are not the known ones."""
    log.info(
        "mbeir %s, %s: %d candidates, %d of %d queries", task.value, split, n_docs, n_wanted,
        n_queries,
    )  # fmt: skip
    known = dict(zip(("candidates", "queries"), SIZES[task], strict=True))
    for name, found in (("candidates", n_docs), ("queries", n_queries)):
        if split == "test" and found != known[name]:
            log.warning(
                "mbeir %s has %d %s here and %d in the published copy; compare results of one "
                "copy only", task.value, found, name, known[name],
            )  # fmt: skip
