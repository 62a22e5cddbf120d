"""What reranking by a language model asked, paid, and could read.

In: counts, as they come. Out: their sums and one sentence. No models, no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class RerankAccount:
    """Sums over everything one reranker did.

    Attributes:
        asked, replayed: prompts answered by the model, and from the log.
        windows: listwise answers read, by what they were: `complete` (every passage once),
            `repaired` (flawed; missing passages appended in input order), `kept` (flawed;
            strict, so the window kept its order), `unreadable` (no passage listed; kept).
        shown_documents, cut_documents, cut_tokens: documents in prompts, replayed ones included.
        cut_queries: queries cut to their limit.
    """

    asked: int = 0
    replayed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    windows: int = 0
    complete: int = 0
    repaired: int = 0
    kept: int = 0
    unreadable: int = 0
    shown_documents: int = 0
    cut_documents: int = 0
    cut_tokens: int = 0
    cut_queries: int = 0

    def show(self, cut_tokens: int) -> None:
        """Count a document shown, that much of it cut off."""
        self.shown_documents += 1
        self.cut_documents += cut_tokens > 0
        self.cut_tokens += cut_tokens


def rerank_sentence(account: Mapping[str, Any]) -> str:
    """The fields of a `RerankAccount`, and `kind` of the reranker, in words."""
    text = f"reranking by {account['kind']}: "
    if account["windows"]:
        shares = (
            f"{account[name]} {name} ({100 * account[name] / account['windows']:.1f} %)"
            for name in ("complete", "repaired", "kept", "unreadable")
        )
        text += f"{account['windows']} windows, {', '.join(shares)}; "
    written = f" and {account['output_tokens']} written" if account["windows"] else ""
    return (
        f"{text}{account['asked']} prompts asked, {account['replayed']} replayed, "
        f"{account['prompt_tokens']} tokens read{written}, {account['seconds']:.0f} s; "
        f"{account['cut_documents']} of {account['shown_documents']} documents shown were cut, by "
        f"{account['cut_tokens']} tokens, {account['cut_queries']} queries cut."
    )
