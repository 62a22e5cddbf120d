"""The language model engine against its plain ways and against the bare matmuls it cannot avoid.

In: the embedded model and API documentation of installed packages. Out: a results file with nodes
a second of each mode. The plain way of a mode is what one writes first: a node at a time, nothing
batched, shared or stopped early. It is timed on the first few nodes only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from asking import batched, ranking_change
from measure import commit, machine, versions
from torch import Tensor

from lgp.ask import Prompt
from lgp.cli import compose
from lgp.data import load_pydocs
from lgp.fp8 import to_fp8
from lgp.generate import LocalEngine, answer_tree
from lgp.llm import Continuations, LanguageModel, load_language_model, plan_batches
from lgp.packed import continuation_logprobs
from lgp.prompts import clean, selection_chat
from lgp.refine.listwise import NONE
from lgp.replies import is_answered

N_ANCHORS, N_PLAIN = 16, 4
NEW_TOKENS = 32
N_CANDIDATES, N_CONTEXT = 12, 4
PROMPT_TOKENS = range(600, 701)
CEILING_ROWS = 2048
ANCHOR_TOKENS, CANDIDATE_TOKENS, LIKELIHOOD_CANDIDATES = 256, 48, 24
PACKAGES = ("torch", "transformers")


def listwise_prompts(engine: LocalEngine, texts: Sequence[str], name: str) -> list[Prompt]:
    """Prompts of 600 to 700 tokens about consecutive documents, cut so that their lengths differ.

    Raises:
        ValueError: documents cannot be cut so that all prompts get such lengths.
    """
    prompt = compose([f"prompt={name}"]).prompt
    size = 1 + N_CONTEXT + N_CANDIDATES
    groups = [texts[at * size : (at + 1) * size] for at in range(N_ANCHORS)]
    for tokens in range(64, 4, -1):
        prompts = []
        for at, group in enumerate(groups):
            shown = [engine.cut(clean(text), tokens - at % 5)[0] for text in group]
            context, candidates = shown[1 : 1 + N_CONTEXT], shown[1 + N_CONTEXT :]
            prompts.append(engine.encode(selection_chat(prompt, shown[0], context, candidates, 2)))
        if all(len(p.content) in PROMPT_TOKENS for p in prompts):
            return prompts
    raise ValueError(f"prompt={name} cannot be brought to {PROMPT_TOKENS}; change N_CANDIDATES")


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds, what the call gave)."""
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def plain_generate(lm: LanguageModel, prompt: Prompt) -> str:
    """One `generate` call of transformers for one node."""
    ids = torch.tensor([prompt.content])
    with torch.inference_mode():
        found = lm.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
        )
    text: str = lm.tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True)
    return text


@dataclass(frozen=True)
class Ceiling:
    """Seconds that bare matmuls of a model's own weights take, at 2,048 rows.

    Attributes:
        token_s: of all linear layers but the last, a token. logits_s: of the last, a token.
    """

    token_s: float
    logits_s: float

    def share(self, n_tokens: int, n_logits: int, seconds: float) -> float:
        """Part of a time that the matmuls alone would have taken."""
        return (n_tokens * self.token_s + n_logits * self.logits_s) / seconds


def measure_ceiling(lm: LanguageModel, repeats: int = 5) -> Ceiling:
    """Time `linear` with every distinct shape of weight; a shape counts as often as it occurs."""
    head = lm.model.get_output_embeddings().weight
    weights = [m.weight for m in lm.model.get_decoder().modules() if isinstance(m, torch.nn.Linear)]

    def seconds(weight: Tensor) -> float:
        rows = torch.randn(CEILING_ROWS, weight.shape[1], dtype=weight.dtype, device=lm.device)
        call = torch.nn.functional.linear
        call(rows, weight)
        return median(timed(lambda: call(rows, weight))[0] for _ in range(repeats)) / CEILING_ROWS

    with torch.inference_mode():
        by_shape = {weight.shape: weight for weight in weights}
        cost = {shape: seconds(weight) for shape, weight in by_shape.items()}
        return Ceiling(sum(cost[weight.shape] for weight in weights), seconds(head))


def measure_listwise(
    lm: LanguageModel, texts: Sequence[str], name: str, batch_tokens: int, repeats: int
) -> dict[str, Any]:
    """Nodes a second of `generate` and `constrained` and of one `generate` call a node.

    Ours are timed with a fresh engine, the shared prefix included.
    """

    def engine() -> LocalEngine:
        return LocalEngine(lm, batch_tokens, NEW_TOKENS, is_answered, "answer line")

    prompts = listwise_prompts(engine(), texts, name)
    options = [NONE, *(f"[{n}]" for n in range(1, N_CANDIDATES + 1))]
    tree = answer_tree([lm.tokenizer.encode(o, add_special_tokens=False) for o in options])
    plain_generate(lm, prompts[-1])
    engine().generate(prompts[-2:])
    times: dict[str, list[float]] = {"plain": [], "generate": [], "constrained": []}
    answers: dict[str, Any] = {}
    for _ in range(repeats):
        calls: dict[str, tuple[int, Callable[[], Any]]] = {
            "plain": (N_PLAIN, lambda: [plain_generate(lm, p) for p in prompts[:N_PLAIN]]),
            "generate": (N_ANCHORS, lambda: batched(engine().generate, prompts, batch_tokens)),
            "constrained": (N_ANCHORS, lambda: _choose(engine(), prompts, options, batch_tokens)),
        }
        for mode, (nodes, call) in calls.items():
            seconds, answers[mode] = timed(call)
            times[mode].append(seconds / nodes)
    node_s = {mode: median(values) for mode, values in times.items()}
    ceiling = measure_ceiling(lm)
    lengths = [len(prompt.content) for prompt in prompts]
    shared = prompts[0].shared
    read = shared + sum(lengths) - N_ANCHORS * shared
    written = [answer["output_tokens"] for answer in answers["generate"]]
    nodes = len(tree.tokens) * N_ANCHORS
    same = sum(
        answer["text"].startswith(full) or full.startswith(answer["text"])
        for full, answer in zip(answers["plain"], answers["generate"], strict=False)
    )
    return {
        "prompt_tokens": {"least": min(lengths), "most": max(lengths), "shared": shared},
        "batch_tokens": batch_tokens,
        "new_tokens": {"most": NEW_TOKENS, "mean": sum(written) / len(written)},
        "nodes_per_s": {mode: 1 / value for mode, value in node_s.items()},
        "runs_s_per_node": times,
        "same_text_as_plain": f"{same} of {N_PLAIN}",
        "generate_speedup": node_s["plain"] / node_s["generate"],
        "constrained_speedup": node_s["plain"] / node_s["constrained"],
        "ceiling_share": {
            # The token written last is never read.
            "generate": ceiling.share(
                read + sum(written) - N_ANCHORS, sum(written), N_ANCHORS * node_s["generate"]
            ),
            "constrained": ceiling.share(
                read + nodes, N_ANCHORS + nodes, N_ANCHORS * node_s["constrained"]
            ),
        },
        "ceiling_tokens_per_s": 1 / ceiling.token_s,
    }


def _choose(
    engine: LocalEngine, prompts: list[Prompt], options: list[str], batch_tokens: int
) -> list[dict[str, Any]]:
    return batched(lambda batch: engine.choose(batch, options), prompts, batch_tokens)


def measure_likelihood(
    lm: LanguageModel, texts: Sequence[str], batch_tokens: int, repeats: int, fp8: bool = False
) -> dict[str, Any]:
    """Nodes a second of `likelihood` and of two full forward passes a candidate.

    The table of log p(candidate), one entry a document for the whole graph, is timed apart. With
    `fp8` the model is then rounded to 8 bits, and some nodes are scored again.
    """
    longest = max(ANCHOR_TOKENS, CANDIDATE_TOKENS)
    size = 1 + LIKELIHOOD_CANDIDATES
    long = [ids for ids in (lm.tokens(text, longest) for text in texts) if len(ids) == longest]
    long = long[: N_ANCHORS * size]
    if len(long) < size:
        raise ValueError(f"{len(long)} documents have {longest} tokens; {size} are needed")
    documents = [ids[:CANDIDATE_TOKENS] for ids in long]
    nodes = [
        Continuations(
            long[at % len(long)],
            [documents[(at * size + n) % len(long)] for n in range(1, size)],
        )
        for at in range(N_ANCHORS)
    ]  # fmt: skip
    start = [lm.tokenizer.bos_token_id]
    table = [Continuations(start, [document]) for document in documents]

    def ours(items: Sequence[Continuations]) -> list[list[float]]:
        found: dict[int, list[float]] = {}
        for batch in plan_batches([item.n_tokens for item in items], batch_tokens):
            scored = continuation_logprobs(lm, [items[at] for at in batch])
            for at, options in zip(batch, scored, strict=True):
                found[at] = [sum(option) for option in options]
        return [found[at] for at in range(len(items))]

    def plain(item: Continuations) -> list[float]:
        scores = []
        for option in item.options:
            given, alone = (_full_pass(lm, prefix, option) for prefix in (item.prefix, start))
            scores.append(given - alone)
        return scores

    ours(nodes[:1])
    times: dict[str, list[float]] = {"plain": [], "likelihood": [], "table": []}
    difference = 0.0
    for _ in range(repeats):
        seconds, expected = timed(lambda: [plain(item) for item in nodes[:N_PLAIN]])
        times["plain"].append(seconds / N_PLAIN)
        seconds, given = timed(lambda: ours(nodes))
        times["likelihood"].append(seconds / N_ANCHORS)
        seconds, rows = timed(lambda: ours(table))
        times["table"].append(seconds / len(documents))
        alone = [value for row in rows for value in row]
        for item, scores, found in zip(nodes, expected, given, strict=False):
            mine = [
                value - alone[documents.index(option)]
                for value, option in zip(found, item.options, strict=True)
            ]
            difference = max(difference, *(abs(a - b) for a, b in zip(scores, mine, strict=True)))
    cost = {mode: median(values) for mode, values in times.items()}
    shared = cost["likelihood"] + cost["table"] * len(documents) / N_ANCHORS
    scored = LIKELIHOOD_CANDIDATES * CANDIDATE_TOKENS
    share = measure_ceiling(lm).share(ANCHOR_TOKENS + scored, scored, cost["likelihood"])
    rounding = {}
    if fp8:
        exact = torch.tensor([given[at] for at in range(N_PLAIN)])
        to_fp8(lm.model)  # the model is not used again
        rounding = {"float8": ranking_change(exact, torch.tensor(ours(nodes[:N_PLAIN])))}
    return {
        "nodes_per_s": {"plain": 1 / cost["plain"], "likelihood": 1 / cost["likelihood"]},
        "table_documents_per_s": 1 / cost["table"],
        "likelihood_speedup": cost["plain"] / cost["likelihood"],
        "likelihood_speedup_with_table": cost["plain"] / shared,
        "largest_difference_from_plain": difference,  # of summed log p, natural logarithm
        "ceiling_share": {"likelihood": share},
        "runs_s_per_node": times,
    } | rounding


@torch.inference_mode()
def _full_pass(lm: LanguageModel, prefix: list[int], option: list[int]) -> float:
    """log p of an option after a prefix, by one forward pass with all its logits."""
    logits = lm.model(torch.tensor([prefix + option])).logits[0, len(prefix) - 1 : -1]
    chosen = logits.log_softmax(-1).gather(1, torch.tensor(option).unsqueeze(1))
    return float(chosen.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="results file (JSON)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fp8", action="store_true", help="also: what 8-bit weights change")
    parser.add_argument("--prompt", default="paper")
    parser.add_argument("--batch-tokens", type=int, default=6144)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    lm = load_language_model("smollm2")
    texts = load_pydocs(["numpy"]).texts
    results: dict[str, Any] = {
        "machine": machine() | {"threads": args.threads},
        "versions": versions(PACKAGES),
        "commit": commit(),
    }
    listwise = measure_listwise(lm, texts, args.prompt, args.batch_tokens, args.repeats)
    likelihood = measure_likelihood(lm, texts, args.batch_tokens, args.repeats, args.fp8)
    for key in ("likelihood_speedup", "generate_speedup", "constrained_speedup"):
        results[key] = (likelihood | listwise)[key]
    results["ceiling_share"] = likelihood["ceiling_share"] | listwise["ceiling_share"]
    results |= {"likelihood": likelihood, "listwise": listwise}
    text = json.dumps(results, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
