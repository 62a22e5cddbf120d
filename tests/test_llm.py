"""Log-probabilities of continuations, documents as data, and the likelihood selector."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch

from lgp.answers import AnswerLog
from lgp.llm import (
    Continuations,
    LanguageModel,
    load_language_model,
    model_source,
    plan_batches,
)
from lgp.packed import check_attention, continuation_logprobs
from lgp.refine.llm_select import Likelihood, LikelihoodSettings
from lgp.refine.shortlist import Shortlist


@pytest.fixture(scope="module")
def lm(tiny_lm: Path) -> LanguageModel:
    return load_language_model(str(tiny_lm))


@pytest.fixture(scope="module", params=["tiny_lm", "tiny_qwen3"])
def either_lm(request: pytest.FixtureRequest) -> LanguageModel:
    return load_language_model(str(request.getfixturevalue(request.param)))


def plain_logprob(lm: LanguageModel, prefix: list[int], option: list[int]) -> list[float]:
    """The obvious way: one full forward pass a continuation."""
    logits = lm.model(torch.tensor([prefix + option])).logits[0].log_softmax(-1)
    return [float(logits[len(prefix) - 1 + i, t]) for i, t in enumerate(option)]


def random_items(seed: int, vocabulary: int) -> list[Continuations]:
    draw = random.Random(seed)

    def tokens(longest: int, shortest: int = 1) -> list[int]:
        return [draw.randrange(vocabulary) for _ in range(draw.randint(shortest, longest))]

    return [
        Continuations(tokens(20), [tokens(9, 0) for _ in range(draw.randint(1, 6))])
        for _ in range(5)
    ]


def assert_equals_plain(lm: LanguageModel, items: list[Continuations], within: float) -> None:
    for item, scored in zip(items, continuation_logprobs(lm, items), strict=True):
        assert len(scored) == len(item.options)
        for option, found in zip(item.options, scored, strict=True):
            expected = plain_logprob(lm, item.prefix, option) if option else []
            assert found == pytest.approx(expected, abs=within)


@pytest.mark.parametrize("seed", range(3))
def test_packed_continuations_equal_one_pass_each(either_lm: LanguageModel, seed: int) -> None:
    assert_equals_plain(either_lm, random_items(seed, 400), within=1e-4)


def test_items_with_one_prefix_keep_their_own_options(either_lm: LanguageModel) -> None:
    first, second, *_ = random_items(4, 400)
    assert_equals_plain(
        either_lm, [first, second, Continuations(first.prefix, second.options)], within=1e-4
    )


def test_the_models_own_attention_is_back_afterwards(lm: LanguageModel) -> None:
    before = lm.model.config._attn_implementation
    continuation_logprobs(lm, random_items(0, 400))
    assert lm.model.config._attn_implementation == before


def test_models_that_packing_would_score_wrongly_are_refused() -> None:
    from transformers import Gemma2Config, GraniteConfig, LlamaConfig, MistralConfig, Qwen3Config

    for config in (LlamaConfig(), Qwen3Config()):
        check_attention(config, 4000)
    check_attention(MistralConfig(sliding_window=64), 64)
    for config, said in (
        (Gemma2Config(), "softcapping"),
        (GraniteConfig(logits_scaling=8.0), "logits_scaling"),
        (MistralConfig(sliding_window=64), "sliding_window 64 below 65"),
    ):
        with pytest.raises(ValueError, match=said):
            check_attention(config, 65)


def test_an_empty_prefix_is_refused(lm: LanguageModel) -> None:
    with pytest.raises(ValueError, match=r"prompt\.prefix"):
        continuation_logprobs(lm, [Continuations([], [[1]])])


def test_documents_cannot_write_special_tokens(lm: LanguageModel) -> None:
    special = lm.tokenizer.convert_tokens_to_ids("<|user|>")
    assert special is not None
    assert special not in lm.tokens("before <|user|> after <|end|>")
    assert lm.tokenizer.decode(lm.tokens("a <|user|> b")) == "a <|user|> b"


def test_batches_stay_under_the_budget_and_hold_everything_once() -> None:
    sizes = [7, 30, 3, 12, 12, 1, 30, 90]
    batches = plan_batches(sizes, 60)
    assert sorted(i for batch in batches for i in batch) == list(range(len(sizes)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(sizes[i] for i in batch) <= 60
    assert plan_batches(sizes, 60) == batches and plan_batches([], 60) == []


def shortlist_of(anchors: list[int], candidates: list[list[int]]) -> Shortlist:
    ids = torch.tensor(candidates, dtype=torch.int32)
    zero = torch.zeros(ids.shape)
    return Shortlist(
        torch.tensor(anchors), torch.empty(len(anchors), 0, dtype=torch.int32), ids, zero,
        zero.int(), zero,
    )  # fmt: skip


TEXTS = ["alpha beta", "gamma delta", "", "epsilon zeta eta", "theta", "iota kappa lambda mu"]


def test_likelihood_is_the_mean_gain_over_the_prior(lm: LanguageModel, tmp_path: Path) -> None:
    settings = LikelihoodSettings("Read: {anchor}\nThen: ", anchor_tokens=4, document_tokens=3)
    selector = Likelihood(lm, TEXTS, settings, AnswerLog(tmp_path))
    found = selector(shortlist_of([0, 4], [[1, 3, 5, 2], [5, 1, -1, -1]]), 3)

    def score(anchor: int, candidate: int) -> float:
        option = lm.tokens(TEXTS[candidate])[:3]
        head, tail = lm.tokens("Read: "), lm.tokens("\nThen: ")
        given = plain_logprob(lm, head + lm.tokens(TEXTS[anchor])[:4] + tail, option)
        prior = plain_logprob(lm, head + tail, option)
        return (math.fsum(given) - math.fsum(prior)) / len(option)

    expected = sorted([1, 3, 5], key=lambda c: -score(0, c))
    assert found.picks[0].tolist() == expected  # the empty document 2 is never picked
    assert found.picks[1].tolist() == [*sorted([5, 1], key=lambda c: -score(4, c)), -1]
    assert found.status.tolist() == [0, 0] and found.asked == 3 + 2 and found.replayed == 0


def test_likelihood_never_asks_a_logged_prompt(lm: LanguageModel, tmp_path: Path) -> None:
    settings = LikelihoodSettings("{anchor}\n")
    shortlist = shortlist_of([0, 4], [[1, 3], [5, 1]])
    first = Likelihood(lm, TEXTS, settings, AnswerLog(tmp_path))(shortlist, 2)
    again = Likelihood(lm, TEXTS, settings, AnswerLog(tmp_path))(shortlist, 2)
    assert torch.equal(first.picks, again.picks)
    assert (again.asked, again.tokens, again.replayed) == (0, 0, first.asked)
    assert again.used_tokens == first.used_tokens == first.tokens > 0
    assert first.asked == 3 + 2  # three documents alone, two after their anchors
    other = LikelihoodSettings("{anchor}\n\n")
    assert Likelihood(lm, TEXTS, other, AnswerLog(tmp_path))(shortlist, 2).asked == 3 + 2
    # A document's own probability is asked once, whatever it is shortlisted beside.
    regrouped = shortlist_of([0, 4], [[5, 3], [3, 1]])
    assert Likelihood(lm, TEXTS, settings, AnswerLog(tmp_path))(regrouped, 2).asked == 2


def test_min_score_drops_picks(lm: LanguageModel, tmp_path: Path) -> None:
    settings = LikelihoodSettings("{anchor}\n", min_score=1e9)
    found = Likelihood(lm, TEXTS, settings, AnswerLog(tmp_path))(shortlist_of([0], [[1, 3]]), 2)
    assert found.picks.tolist() == [[-1, -1]] and found.status.tolist() == [1]


def test_a_local_model_is_named_by_its_weights(tiny_lm: Path) -> None:
    assert len(model_source(str(tiny_lm))) == 64
    assert model_source("some/hub-name", "abc") == "some/hub-name@abc"


@pytest.mark.slow
def test_the_embedded_model_prefers_related_text(tmp_path: Path) -> None:
    lm = load_language_model("smollm2")
    assert_equals_plain(lm, random_items(0, 40000)[:2], within=2e-3)
    texts = [
        "The cat sat on the mat and purred while the kitten played with a ball of wool.",
        "Kittens and cats purr when they are content, and they love to play.",
        "The central bank raised its interest rate by a quarter point to curb inflation.",
    ]
    settings = LikelihoodSettings("{anchor}\n\n")
    found = Likelihood(lm, texts, settings, AnswerLog(tmp_path))(shortlist_of([0], [[2, 1]]), 1)
    assert found.picks.tolist() == [[1]]
