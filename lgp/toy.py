"""A generated collection for tests and docs: pseudo-word documents with known neighbors.

Input is a seed, output plain records; `data.load_toy` makes a `Dataset` of them.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

N_SHARED = 40  # words that occur everywhere
N_OWN = 8  # words of each topic, and of each of its two groups


def generate(
    seed: int, n_topics: int, group_size: int
) -> tuple[list[tuple[str, str, str]], dict[str, str], dict[str, dict[str, int]]]:
    """Generate documents, queries and judgments.

    Each topic has words of its own and two groups of documents, each with words of its own too. A
    document draws 9 group words, 10 topic words and 9 words shared by all (title included). One
    query a group draws 4, 3 and 2: grade 2 for the group's documents, 1 for the topic's other
    group. Words are random syllables, so any embedder that sees words or parts of words finds most
    of the relevant documents, and the shared words keep it from finding all.

    Returns:
        (id, title, body) records in seeded order; {query id: text}; {query id: {id: grade}}.
    """
    rng = random.Random(seed)
    words = _pseudo_words(rng, N_SHARED + n_topics * 3 * N_OWN)
    shared, own = words[:N_SHARED], words[N_SHARED:]
    documents: list[tuple[str, str, str]] = []
    queries: dict[str, str] = {}
    qrels: dict[str, dict[str, int]] = {}
    for topic in range(n_topics):
        first = 3 * N_OWN * topic
        topic_words, *group_words = (own[at : at + N_OWN] for at in range(first, first + 24, N_OWN))
        groups = [
            [f"t{topic:02d}{half}-{number:02d}" for number in range(group_size)] for half in "ab"
        ]
        for half, special in enumerate(group_words):
            query = f"q-t{topic:02d}{'ab'[half]}"
            drawn = _pick(rng, special, 4) + _pick(rng, topic_words, 3) + _pick(rng, shared, 2)
            queries[query] = " ".join(drawn)
            qrels[query] = dict.fromkeys(groups[half], 2) | dict.fromkeys(groups[1 - half], 1)
            for identifier in groups[half]:
                title = " ".join(_pick(rng, topic_words, 1) + _pick(rng, shared, 1))
                body = _pick(rng, special, 9) + _pick(rng, topic_words, 9) + _pick(rng, shared, 8)
                documents.append((identifier, title, " ".join(_shuffled(rng, body))))
    # Corpus order must carry no information: graphs break ties by row number.
    return _shuffled(rng, documents), queries, qrels


def _pseudo_words(rng: random.Random, count: int) -> list[str]:
    """`count` different words of three syllables."""
    words: dict[str, None] = {}
    while len(words) < count:
        syllables = [_pick(rng, "bdfgklmnprstvz", 1) + _pick(rng, "aeiou", 1) for _ in range(3)]
        words["".join(letter for syllable in syllables for letter in syllable)] = None
    return list(words)


# Only random() is promised to give the same numbers in every Python version; choice, sample and
# shuffle are not.
def _pick(rng: random.Random, items: Sequence[str], count: int) -> list[str]:
    return [items[int(rng.random() * len(items))] for _ in range(count)]


def _shuffled(rng: random.Random, items: Sequence[Item]) -> list[Item]:
    keys = [rng.random() for _ in items]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]
