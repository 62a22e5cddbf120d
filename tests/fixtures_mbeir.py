"""A miniature M-BEIR in the hub's layout, with every oddity of the real one.

Null, empty and quoted text; both spellings of a mixed modality; positives as strings and as
objects; ids as "9:3" and as the numbers UniIR makes of them; judgments of five columns with grade
0; OVEN and InfoSeek judging each other's documents; a query whose positives are missing; images in
a folder, in a tar file, and one file under two names.
"""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

from PIL import Image

from lgp.choices import MbeirTask

N_CANDIDATES, N_QUERIES = 45, 9
DATASETS = {
    "visualnews": 0, "fashion200k": 1, "webqa": 2, "edis": 3, "nights": 4, "oven": 5,
    "infoseek": 6, "fashioniq": 7, "cirr": 8, "mscoco": 9,
}  # fmt: skip
SIDES = {
    0: ("text", "image"), 1: ("text", "text"), 2: ("text", "image,text"), 3: ("image", "text"),
    4: ("image", "image"), 6: ("image,text", "text"), 7: ("image,text", "image"),
    8: ("image,text", "image,text"),
}  # fmt: skip
HASHED = MbeirTask.nights_task4  # its files hold numbers instead of "4:17"
WORDS = (
    "red", "coat", "harbour", "bridge", "castle", "dog", "kite", "soup", "mayor", "match", "tower",
    "piano", "rain", "desk",
)  # fmt: skip


def write_mbeir(folder: Path, seed: int = 0) -> Path:
    """Write all 16 tasks: queries, local pools, judgments, instructions and images."""
    for name in ("query/test", "cand_pool/local", "qrels/test", "instructions", "mbeir_images"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    packed: list[tuple[str, bytes]] = []
    for task in MbeirTask:
        write_task(folder, task, random.Random(f"{seed}-{task.value}"), packed)
    with tarfile.open(folder / "mbeir_images_more.tar", "w") as tar:
        for name, data in packed:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    lines = ["query_modality\tcand_modality\tsubtask\tdataset_id\tprompt_1\tprompt_2\tprompt_3"]
    for task in MbeirTask:
        dataset, (query, candidate) = parts(task)
        # The last prompt is empty, and one mixed modality has the other spelling.
        prompts = f'find what {task.value} asks\t"Show {candidate} for {query}!"\t'
        lines.append(f"{other(query)}\t{candidate}\tany\t{dataset}\t{prompts}")
    (folder / "instructions/query_instructions.tsv").write_text("\n".join(lines) + "\n")
    return folder


def parts(task: MbeirTask) -> tuple[int, tuple[str, str]]:
    """The number of a task's data set and the modalities of its two sides."""
    name, number = task.value.split("_task")
    return DATASETS[name], SIDES[int(number)]


def other(modality: str) -> str:
    """The other spelling of a mixed modality."""
    return ",".join(reversed(modality.split(",")))


def write_task(
    folder: Path, task: MbeirTask, rng: random.Random, packed: list[tuple[str, bytes]]
) -> None:
    dataset, (query_side, side) = parts(task)

    def written(identifier: str, per: int) -> object:
        a, b = map(int, identifier.split(":"))
        return a * per + b if task is HASHED else identifier

    def picture(kind: str, at: int) -> str:
        name = f"mbeir_images/{task.value}_images/{kind} {at}.jpg"
        file = io.BytesIO()
        Image.new("RGB", (8, 8), (rng.randrange(256), at, 99)).save(file, "JPEG")
        if at % 7 == 6:
            packed.append((name, file.getvalue()))
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(file.getvalue())
        return name

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(3, 9)))

    candidates: list[dict[str, Any]] = []
    for at in range(N_CANDIDATES):
        candidates.append(
            {
                "did": written(f"{dataset}:{at + 1}", 10_000_000),
                "txt": text() if "text" in side else rng.choice([None, ""]),
                "img_path": picture("c", at) if "image" in side else None,
                "modality": other(side) if at % 2 else side,
                "src_content": json.dumps({"at": at}),
            }
        )
        if at % 9 == 8 and at > 9:  # a candidate that repeats another under its own id
            same = candidates[at - 8]
            candidates[at] |= {"txt": same["txt"], "img_path": same["img_path"]}
    if "text" in side:
        candidates[3]["txt"] = '  "quoted\r\n caption"  '
        candidates[4]["txt"] = "Ends well!"
    queries: list[dict[str, Any]] = []
    qrels: list[str] = []
    for at in range(N_QUERIES):
        qid, n = f"{dataset}:{at + 1}", rng.randint(1, 4)
        own = [f"{dataset}:{i + 1}" for i in rng.sample(range(N_CANDIDATES), n)]
        foreign = [f"{11 - dataset}:77"] if dataset in (5, 6) and at % 2 else []  # 5 <-> 6
        listed = [written(did, 10_000_000) for did in own + foreign]
        queries.append(
            {
                "qid": written(qid, 500_000),
                "query_txt": text() if "text" in query_side else None,
                "query_img_path": picture("q", at) if "image" in query_side else None,
                "query_modality": other(query_side) if at % 2 else query_side,
                "query_src_content": None,
                "pos_cand_list": [{"did": did} for did in listed] if at % 2 else listed,
                "neg_cand_list": [],
                "task_id": int(task.value[-1]),
            }
        )
        if at == N_QUERIES - 1:
            queries[-1]["pos_cand_list"] = []  # its positives are missing, there and in the qrels
            continue
        if at == 4:
            queries[-1]["pos_cand_list"] = listed[:-1]  # and this one lists fewer than are judged
        rows = [(did, 1) for did in own + foreign]
        rows += [(f"{dataset}:{N_CANDIDATES}", 0)] if f"{dataset}:{N_CANDIDATES}" not in own else []
        for did, grade in rows:
            names = written(qid, 500_000), written(did, 10_000_000)
            qrels.append(f"{names[0]} 0 {names[1]} {grade} {task.value[-1]}")
    pool = f"{task.value}_test" if dataset == 9 else task.value
    write_lines(folder / f"cand_pool/local/mbeir_{pool}_cand_pool.jsonl", candidates)
    write_lines(folder / f"query/test/mbeir_{task.value}_test.jsonl", queries)
    (folder / f"qrels/test/mbeir_{task.value}_test_qrels.txt").write_text("\n".join(qrels) + "\n")


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
