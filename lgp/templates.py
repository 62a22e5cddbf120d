"""Templates of prompts: text with named placeholders in braces, checked before anything runs.

In: a template and the placeholders it may and must hold. Out: its parts. What fills them is
unknown here.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter

PLACEHOLDERS: dict[str, dict[str, bool]] = {
    "selection_system": {"B": True, "documents": False, "uses": False},
    "selection_user": {"anchor": True, "keep_block": True, "cand_block": True},
    "ranking_system": {"N": False, "QUERY": False},
    "ranking_user": {"N": False, "QUERY": True, "passages": True, "instruction": False},
    "passage_mark": {"n": True},
    "query_prefix": {"document": True},
    "query_system": {"documents": False, "n": False},
    "query_user": {"document": True, "documents": False, "n": False},
}
"""Per template its placeholders, by the paper's names (appendix C); True = must be there."""


def template_parts(template: str) -> list[tuple[str, str | None]]:
    """(text, name of the placeholder that follows or None) from start to end.

    Raises:
        ValueError: a brace without its partner, or something else than a name between two.
    """
    parts: list[tuple[str, str | None]] = []
    try:
        for literal, name, form, conversion in Formatter().parse(template):
            if name is not None and (form or conversion or not name.isidentifier()):
                raise ValueError(f"{{{name}}} is not a plain name")
            parts.append((literal, name))
    except ValueError as error:
        raise ValueError(f"is no template ({error}); write a brace that is text twice") from error
    return parts


def check_template(template: str, placeholders: Mapping[str, bool]) -> None:
    """Refuse a template with an unknown placeholder, or without one it must hold.

    Args:
        placeholders: name -> whether the template must hold it.
    Raises:
        ValueError: naming the placeholder, without a subject, so that the caller names the key.
    """
    names = [name for _, name in template_parts(template) if name is not None]
    for name in names:
        if name not in placeholders:
            known = ", ".join(f"{{{each}}}" for each in placeholders)
            raise ValueError(f"holds the unknown placeholder {{{name}}}; known: {known}")
    for name, needed in placeholders.items():
        if needed and name not in names:
            raise ValueError(f"lacks the placeholder {{{name}}}; add it")
