"""API documentation of installed packages as pages: what a docstring says, cut into its parts.

Input are package names; output is a `Library`: one `Page` per documented public function or class,
and a table of every public path. The walk over modules is in `pydocs_walk.py`, which runs in a
process of its own. Nothing here knows about queries or relevance beyond the names written in "See
Also" sections.
"""

import importlib.metadata
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lgp.beir import DataError

WALKER = Path(__file__).with_name("pydocs_walk.py")
UNDERLINE = re.compile(r"\s*(-{3,}|={3,}|~{3,})\s*$")
TARGET = re.compile(r"\s*(?::[\w:]+:)?`{0,2}~?([A-Za-z_][\w.]*)`{0,2}(?:\(\))?\s*(,|:|$)")


@dataclass(frozen=True)
class Page:
    """One documented object.

    Attributes:
        name: canonical name, the shortest public path (fewest parts, then characters, then
            alphabetical).
        body: docstring without its "See Also" section.
        summary: first sentence, without a leading signature; "" when there is none.
        is_function: a function, method, ufunc or callable instance; False for classes.
        see_also: names as written in the "See Also" section, in order, not resolved.
    """

    name: str
    body: str
    summary: str
    is_function: bool
    see_also: tuple[str, ...]


@dataclass(frozen=True)
class Library:
    """Pages sorted by name; aliases {any public path: canonical name of a page}."""

    pages: tuple[Page, ...]
    aliases: dict[str, str]
    n_modules: int
    failed_modules: tuple[str, ...]


def read_pages(packages: Sequence[str]) -> Library:
    """Read the pages of all public modules of `packages`, in a child process.

    Raises:
        DataError: `packages` is a string or empty, one of them is not installed, or the child died.
    """
    if isinstance(packages, str) or not packages:
        raise DataError(f"packages={packages!r} must be a non-empty list, as in ['numpy']")
    for package in packages:
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            raise DataError(f"package {package!r} is not installed; pip install it or leave it out")
    walked = _walk(packages)
    pages = [_read_page(name, text, is_function) for name, text, is_function in walked["documents"]]
    return Library(
        pages=tuple(sorted(pages, key=lambda page: page.name)),
        aliases=walked["aliases"],
        n_modules=walked["n_modules"],
        failed_modules=tuple(walked["failed_modules"]),
    )


def _walk(packages: Sequence[str]) -> dict[str, Any]:
    # A child process keeps the packages' imports out of this one. It also fixes the order of
    # sets of strings: scipy 1.17 prints one into a docstring, which changed from run to run.
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "walked.json"
        command = [sys.executable, "-P", "-W", "ignore", str(WALKER), str(answer)]
        done = subprocess.run(
            [*command, json.dumps(sys.path), *packages],
            env=os.environ | {"PYTHONHASHSEED": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0 or not answer.is_file():
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise DataError(
                f"reading the documentation of {list(packages)} ended with code {done.returncode} "
                f"({said[-1] if said else 'no message'}); leave out what fails to import"
            )
        walked: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return walked


def resolve_targets(page: Page, aliases: Mapping[str, str]) -> list[str | None]:
    """Canonical name of each "See Also" target of `page`; None where it names no page.

    A name is looked up as written, then inside the page's own class, module and its parents,
    nearest first. A hit on the page itself is passed over, since a method often points to the
    function of the same name.
    """
    parts = page.name.split(".")
    prefixes = ["", *(".".join(parts[:end]) + "." for end in range(len(parts) - 1, 0, -1))]
    resolved: list[str | None] = []
    for written in page.see_also:
        name = re.sub(r"^np\.", "numpy.", written)
        hits = [aliases[prefix + name] for prefix in prefixes if prefix + name in aliases]
        resolved.append(next((hit for hit in hits if hit != page.name), None))
    return resolved


def package_versions(packages: Sequence[str]) -> dict[str, str]:
    """{package: version of the distribution that installed it}, for records; "?" if unknown."""
    owners = importlib.metadata.packages_distributions()
    versions: dict[str, str] = {}
    for package in packages:
        root = package.partition(".")[0]
        found = owners.get(root, [])
        versions[package] = importlib.metadata.version(found[0]) if found else "?"
    return versions


def _read_page(name: str, docstring: str, is_function: bool) -> Page:
    text = cut_varying(inspect.cleandoc(docstring))
    body, section = cut_see_also(text)
    return Page(
        name=name,
        body=body.strip(),
        summary=read_summary(text),
        is_function=is_function,
        see_also=tuple(read_targets(section)),
    )


def cut_varying(text: str) -> str:
    """Docstring without example outputs marked "may vary".

    scipy 1.17 runs some of its examples at import, so these outputs differ from run to run.
    """
    kept: list[str] = []
    for line in text.splitlines():
        if "# may vary" not in line or line.lstrip().startswith((">>>", "...")):
            kept.append(line)
            continue
        # An output may span lines; only its last one bears the mark.
        while kept and kept[-1].strip() and not kept[-1].lstrip().startswith((">>>", "...")):
            kept.pop()
    return "\n".join(kept)


def cut_see_also(text: str) -> tuple[str, list[str]]:
    """Split a docstring into (text without "See Also", lines of that section).

    Both the numpydoc section and Sphinx's `.. seealso::` block are cut; only the former gives
    lines. The blank lines around a cut stay.
    """
    lines = text.splitlines()
    kept: list[str] = []
    section: list[str] = []
    at = 0
    while at < len(lines):
        if lines[at].strip().lower() == "see also" and _underlined(lines, at):
            end = at + 2
            while end < len(lines) and not (lines[end].strip() and _underlined(lines, end)):
                end += 1
            section += lines[at + 2 : end]
            at = end
        elif lines[at].strip().startswith(".. seealso::"):
            depth = _indent(lines[at])
            at += 1
            while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) > depth):
                at += 1
        else:
            kept.append(lines[at])
            at += 1
    return "\n".join(kept), section


def read_targets(section: Sequence[str]) -> list[str]:
    """Names that head the entries of a "See Also" section, each once, in order.

    An entry is a line at the section's own indentation, `name`, `name : description` or
    `name, name`, with or without a Sphinx role. A line of prose gives nothing.
    """
    filled = [line for line in section if line.strip()]
    depth = min((_indent(line) for line in filled), default=0)
    names: dict[str, None] = {}
    for line in filled:
        if _indent(line) > depth:
            continue
        at = 0
        while match := TARGET.match(line, at):
            names[match.group(1).rstrip(".")] = None
            at = match.end()
            if match.group(2) != ",":
                break
    return list(names)


def read_summary(text: str) -> str:
    """First sentence of a docstring's first paragraph, on one line, without mark-up.

    Leading signatures and `..` directives are skipped; "" if a section comes first.
    """
    for paragraph in re.split(r"\n\s*\n", text):
        lines = _drop_signatures(paragraph)
        if not lines or lines[0].lstrip().startswith(".. "):
            continue
        if any(UNDERLINE.match(line) for line in lines):
            return ""
        joined = " ".join(" ".join(lines).split())
        sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", joined, maxsplit=1)[0]
        return re.sub(r"(?::[\w:]+:)?(`{1,2})~?([^`]*)\1", r"\2", sentence)
    return ""


def _drop_signatures(paragraph: str) -> list[str]:
    """Lines of `paragraph` after any leading `name(arguments) -> result` lines."""
    lines = paragraph.splitlines()
    while lines and re.match(r"\s*[A-Za-z_][\w.]*\(", lines[0]):
        open_brackets, end = 0, 0
        while end < len(lines):
            open_brackets += lines[end].count("(") - lines[end].count(")")
            end += 1
            if open_brackets <= 0:
                break
        tail = lines[end - 1].rpartition(")")[2].strip()
        # A sentence may begin with a call, as in "f(x) is ..."; only bare signatures go.
        if open_brackets > 0 or (tail and not tail.startswith(("->", ":"))):
            break
        lines = lines[end:]
    return lines


def _underlined(lines: Sequence[str], at: int) -> bool:
    return at + 1 < len(lines) and UNDERLINE.match(lines[at + 1]) is not None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
