"""Hostile answers parse as `lgp.replies` says."""

from __future__ import annotations

import random

import pytest

from lgp.replies import LONGEST, is_answered, read_ranking, read_selection

SHOWN, LIMIT = 12, 3
CHOSEN: list[tuple[str, str, list[int]]] = [
    ("one", "[3]", [3]),
    ("best first", "[3] [1]", [3, 1]),
    ("each on a line", "[3]\n[1]\n", [3, 1]),
    ("at most the limit", "[4] [3] [2] [1]", [4, 3, 2]),
    ("a repeat counts once", "[2] [2] [2] [5]", [2, 5]),
    ("out of range is dropped", "[13] [0] [99999999999] [12]", [12]),
    ("prose around", "I would link [7], because it proves [1].", [7, 1]),
    ("digits in prose", "The 3 documents [5] and 4 more", [5]),
    ("a ranking's arrows", "[2] > [1] > [3]", [2, 1, 3]),
    ("commas", "[2],[1]", [2, 1]),
    ("blanks inside", "[ 2 ] [\t1]", [2, 1]),
    ("nested brackets", "[[3]] [[[1]]]", [3, 1]),
    ("an extra bracket", "[3]] [", [3]),
    ("a range is no identifier", "[1-3] [5]", [5]),
    ("a list is no identifier", "[1, 2] [5]", [5]),
    ("leading zeros are none", "[01] [007] [5]", [5]),
    ("signs and fractions are none", "[-1] [+2] [3.0] [1e0] [5]", [5]),
    ("full-width digits are none", "[\uff13] [5]", [5]),
    ("full-width brackets are none", "\uff3b3\uff3d 【4】 [5]", [5]),
    ("Arabic and Devanagari digits are none", "[٣] [३] [5]", [5]),
    ("superscript and circled digits are none", "[³] [③] [5]", [5]),
    ("emoji", "🎉[4]🎉 👩‍🔬 [2]", [4, 2]),
    ("a query line is not read", "QUERY: see [9] and [8]\n[3]", [3]),
    ("nor one after the picks", "[3]\nQUERY: [9]", [3]),
    ("nor an indented or emphasised one", "  **QUERY:** [9]\n- QUERY: [8]\n[3]", [3]),
    ("QUERY inside a line hides nothing", "[3] QUERY: [9]", [3, 9]),
    ("old line ends", "QUERY: [9]\r[3]\rQUERY: [8]\r\n[4]", [3, 4]),
    ("NONE beside a pick", "NONE of them but [3]", [3]),
    ("thinking does not count", "<think>[9] or [8]?</think>\n\n[3]", [3]),
    ("the last thought counts", "<think>a</think>[9]<think>[8]</think>[3]", [3]),
    ("an empty thought", "<think>\n\n</think>\n\n[3] [1]", [3, 1]),
    ("markdown", "1. **[3]**\n2. `[1]`", [3, 1]),
    ("JSON", '{"answer": ["[3]", "[1]"]}', [3, 1]),
    ("a NUL and controls", "\x00[3]\x07", [3]),
    ("the prompt's example echoed counts", "Examples: [3] [1] or NONE", [3, 1]),
    ("the candidates echoed count", "[1] alpha\n[2] beta\n", [1, 2]),
    ("a turn's mark", "[3]<|im_end|>\n<|im_start|>user", [3]),
]
OTHERS: list[tuple[str, str, str]] = [
    ("none", "NONE", "none"),
    ("none in a sentence", "Answer: NONE.", "none"),
    ("none after a query", "QUERY: what about [3]?\nNONE", "none"),
    ("none only in a query", "QUERY: NONE", "unreadable"),
    ("lower case is no NONE", "none", "unreadable"),
    ("a longer word is no NONE", "NONESUCH ANONE NONE_", "unreadable"),
    ("an unknown number is no NONE", "[99] NONE", "unreadable"),
    ("empty", "", "unreadable"),
    ("white space", " \n\t\r\n", "unreadable"),
    ("bare digits", "3 1", "unreadable"),
    ("spelled out", "candidate three", "unreadable"),
    ("round brackets", "(3) {1} <2>", "unreadable"),
    ("an open bracket", "[3", "unreadable"),
    ("a range alone", "[1-3]", "unreadable"),
    ("zeros alone", "[01]", "unreadable"),
    ("zero", "[0]", "unreadable"),
    ("split over lines", "[\n3\n]", "unreadable"),
    ("only a query", "QUERY: [3]", "unreadable"),
    ("thinking that never ends", "<think>[3] or [1]", "unreadable"),
    ("thinking after which nothing comes", "<think>[3]</think>", "unreadable"),
    ("an answer, then endless thought", "</think><think>[3]", "unreadable"),
    ("beyond what is read", " " * LONGEST + "[3]", "unreadable"),
    ("huge number", "[" + "9" * 100_000 + "]", "unreadable"),
]


@pytest.mark.parametrize(("name", "text", "expected"), CHOSEN, ids=[row[0] for row in CHOSEN])
def test_picks(name: str, text: str, expected: list[int]) -> None:
    reply = read_selection(text, SHOWN, LIMIT)
    assert (reply.status, [place + 1 for place in reply.picks]) == ("chosen", expected)


@pytest.mark.parametrize(("name", "text", "status"), OTHERS, ids=[row[0] for row in OTHERS])
def test_no_picks(name: str, text: str, status: str) -> None:
    reply = read_selection(text, SHOWN, LIMIT)
    assert (reply.status, reply.picks) == (status, ())


def test_query_lines_are_kept() -> None:
    text = "QUERY: how do [3] cats purr?\n**QUERY:** second \n[1]"
    assert read_selection(text, 3, 2).queries == ("how do [3] cats purr?", "second")


@pytest.mark.parametrize(
    "unit",
    ["[", "]", "[1", "[ ", "[1 ", "QUERY:", "\n", "\r", " ", "[[1]", "*_`", "<think>", "</think>",
     "</think", "[99999999999", "NONE", "9", "\U0001f389", "[1] "],
)  # fmt: skip
def test_ten_megabytes_are_read_in_linear_time(unit: str) -> None:
    # Quadratic work on 10 MB would not end within the life of a test run.
    text = unit * (10_000_000 // len(unit))
    read_selection(text, 20, 2)
    read_ranking(text, 20)
    is_answered(text)


@pytest.mark.parametrize(
    ("text", "answered"),
    [
        ("[3] [1]\n", True), ("NONE\n", True), ("[3] [1]", False), ("NONE", False), ("\n\n", False),
        ("QUERY: [3]\n", False), ("QUERY: a\n[3]\n", True), ("[3]\nQUERY: b", True),
        ("Let me see\n", False), ("Let me see\nNONE\nand", True), ("[99]\n", True),
        ("<think>\n[3]\n", False), ("<think>\n[3]\n</think>\n", False),
        ("<think>a</think>\n[3]\n", True), ("QUERY: NONE\n", False),
    ],
)  # fmt: skip
def test_an_answer_ends_with_its_line(text: str, answered: bool) -> None:
    assert is_answered(text) is answered


@pytest.mark.parametrize(
    ("text", "listed", "repeated", "unknown"),
    [
        ("[2] > [1] > [4] > [3]", [2, 1, 4, 3], 0, 0),
        ("Here it is: [2] > [1] > [4] > [3]. Done.", [2, 1, 4, 3], 0, 0),
        ("[2] > [1]", [2, 1], 0, 0),
        ("[2] > [2] > [1] > [4] > [3]", [2, 1, 4, 3], 1, 0),
        ("[2] > [1] > [4] > [3] > [5] > [0]", [2, 1, 4, 3], 0, 1),
        ("[1] > [2] ... > [4]", [1, 2, 4], 0, 0),
        ("", [], 0, 0),
        ("2 > 1 > 4 > 3", [], 0, 0),
        ("<think>[1] > [2]</think>[4] > [3] > [2] > [1]", [4, 3, 2, 1], 0, 0),
    ],
)
def test_rankings(text: str, listed: list[int], repeated: int, unknown: int) -> None:
    found = read_ranking(text, 4)
    assert [place + 1 for place in found.listed] == listed
    assert (found.repeated, found.unknown) == (repeated, unknown)
    clean = len(listed) == 4 and not repeated and not unknown
    assert found.flawed is not clean
    repaired = [place + 1 for place in found.order(strict=False)]
    assert repaired == listed + [n for n in (1, 2, 3, 4) if n not in listed]
    kept = [place + 1 for place in found.order(strict=True)]
    assert kept == (listed if clean else [1, 2, 3, 4])


def test_any_text_gives_a_permutation_and_valid_picks() -> None:
    draw = random.Random(0)
    alphabet = [
        "[",
        "]",
        "1",
        "2",
        "9",
        "0",
        " ",
        "\n",
        "NONE",
        "QUERY:",
        ">",
        "<think>",
        "</think>",
    ]
    for _ in range(3000):
        text = "".join(draw.choices(alphabet, k=draw.randint(0, 40)))
        for strict in (False, True):
            assert sorted(read_ranking(text, 7).order(strict)) == list(range(7))
        reply = read_selection(text, 7, 2)
        assert len(set(reply.picks)) == len(reply.picks) <= 2
        assert all(0 <= place < 7 for place in reply.picks)
        assert bool(reply.picks) is (reply.status == "chosen")
