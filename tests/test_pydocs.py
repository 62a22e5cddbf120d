"""The API documentation corpus: parsing by hand-made docstrings, walking by a hand-made package."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lgp.data import DataError, load_pydocs
from lgp.pydocs import (
    Page,
    cut_see_also,
    cut_varying,
    read_pages,
    read_summary,
    read_targets,
    resolve_targets,
)

DOCSTRING = """Add two numbers.  Slowly.

See Also
--------
subtract, pkg.multiply : The others.
    divide : an indented description, not an entry
:func:`~pkg.power` : With a role.
`negate`
For the theory see a book.

Notes
-----
Text that stays."""

FILES = {
    "__init__.py": '''
        """A package."""
        import os, warnings
        from ._impl import add, Sum, _hidden
        from .tools import add as alias_of_add
        print("import noise")
        warnings.warn("import noise", DeprecationWarning)
        ''',
    "_impl.py": '''
        class _Base:
            def total(self):
                """Total of all terms.

                See Also
                --------
                add : Function.
                """
        class Sum(_Base):
            """A sum.

            See Also
            --------
            add
            """
            size = property(lambda self: 0, doc="Left out.")
            @classmethod
            def empty(cls):
                """Make an empty sum.

                See Also
                --------
                total
                """
        def add(a, b):
            """add(a, b) -> number

            Add two numbers.

            See Also
            --------
            add : Itself, no target.
            Sum.total : Method.
            missing : Nowhere.
            """
        def _hidden():
            """Private."""
        def undocumented(): pass
        ''',
    "tools.py": '''
        """Tools."""
        __all__ = ["add", "lonely", "not_there"]
        from ._impl import add
        def lonely():
            """Nobody points here."""
        def unlisted():
            """Not in __all__."""
        ''',
    "broken.py": "import sys\nsys.exit(3)\n",
    "tests/__init__.py": "raise RuntimeError('tests must not be imported')\n",
    "_private.py": "raise RuntimeError('private modules must not be imported')\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that lies nowhere but on this test's sys.path."""
    for name, content in FILES.items():
        path = tmp_path / "tinypkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(content), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "tinypkg"


def test_walks_public_names_only(package: str, capfd: pytest.CaptureFixture[str]) -> None:
    library = read_pages([package])
    assert [page.name for page in library.pages] == [
        "tinypkg.Sum",
        "tinypkg.Sum.empty",
        "tinypkg.Sum.total",
        "tinypkg.add",
        "tinypkg.tools.lonely",
    ]
    assert library.failed_modules == ("tinypkg.broken",)
    assert library.n_modules == 2
    assert library.aliases["tinypkg.tools.add"] == "tinypkg.add"
    assert library.aliases["tinypkg.alias_of_add"] == "tinypkg.add"
    assert package not in sys.modules, "imports happen in a child process"
    assert capfd.readouterr() == ("", "")


def test_queries_and_judgments_come_from_see_also(package: str) -> None:
    data = load_pydocs([package])
    assert dict(zip(data.query_ids, data.queries, strict=True)) == {
        "tinypkg.Sum.empty": "Make an empty sum.",
        "tinypkg.Sum.total": "Total of all terms.",
        "tinypkg.add": "Add two numbers.",
    }
    assert data.qrels == {
        "tinypkg.Sum.empty": {"tinypkg.Sum.total": 1},
        "tinypkg.Sum.total": {"tinypkg.add": 1},
        "tinypkg.add": {"tinypkg.Sum.total": 1},
    }
    assert data.excluded == {query: frozenset({query}) for query in data.query_ids}
    assert data.titles == data.doc_ids
    assert data.bodies[3] == "add(a, b) -> number\n\nAdd two numbers."
    assert not any("See Also" in text for text in data.texts)
    assert data.info["n_failed_modules"] == 1
    assert (data.info["n_see_also"], data.info["n_see_also_unresolved"]) == (6, 2)
    assert data.info["packages"] == {package: "?"}
    json.dumps(data.info)


def test_section_is_cut_and_read() -> None:
    body, section = cut_see_also(DOCSTRING)
    assert body == "Add two numbers.  Slowly.\n\nNotes\n-----\nText that stays."
    assert read_targets(section) == ["subtract", "pkg.multiply", "pkg.power", "negate"]
    at_end, section = cut_see_also("Text.\n\nSee Also\n--------\nother")
    assert (at_end, section) == ("Text.\n", ["other"])
    sphinx, section = cut_see_also("Text.\n\n.. seealso:: other\n\n   more\n\nEnd.")
    assert (sphinx, section) == ("Text.\n\nEnd.", [])
    assert cut_see_also("See also\nno underline") == ("See also\nno underline", [])


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("Add two numbers. Then rest.", "Add two numbers."),
        ("add(a, b)\n\nAdd over\ntwo lines", "Add over two lines"),
        ("add(a[,\n    b]) -> int\nadd(a, b, c)\n\nAdd all.", "Add all."),
        ("f(x) is a function.", "f(x) is a function."),
        ("Return ``x`` of :func:`~pkg.add`, i.e. a sum.", "Return x of pkg.add, i.e. a sum."),
        (".. deprecated:: 1.0\n   Gone.\n\nStill here.", "Still here."),
        ("Parameters\n----------\na : int", ""),
        ("add(a, b)", ""),
    ],
)
def test_summaries(text: str, summary: str) -> None:
    assert read_summary(text) == summary


def test_outputs_that_vary_from_run_to_run_are_cut() -> None:
    text = (
        ">>> draw()\narray([0.1,\n       0.2])  # may vary\n>>> 1 + 1\n2\n>>> draw()  # may vary\n3"
    )
    assert cut_varying(text) == ">>> draw()\n>>> 1 + 1\n2\n>>> draw()  # may vary\n3"


def test_targets_are_looked_up_from_inside_out() -> None:
    page = Page("pkg.mod.Class.add", "", "", True, ("add", "Class.sub", "np.add", "pkg.f", "gone"))
    aliases = {
        "pkg.mod.Class.add": "pkg.mod.Class.add",
        "pkg.mod.add": "pkg.mod.add",
        "pkg.add": "pkg.add",
        "pkg.mod.Class.sub": "pkg.mod.Class.sub",
        "numpy.add": "numpy.add",
        "pkg.f": "pkg.g",
    }
    expected = ["pkg.mod.add", "pkg.mod.Class.sub", "numpy.add", "pkg.g", None]
    assert resolve_targets(page, aliases) == expected


def test_bad_packages_are_refused(package: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'numpy' must be a non-empty list"):
        load_pydocs("numpy")
    with pytest.raises(DataError, match="must be a non-empty list"):
        load_pydocs([])
    with pytest.raises(DataError, match="'no_such_pkg' is not installed; pip install it"):
        load_pydocs(["no_such_pkg"])
    (tmp_path / "bare.py").write_text('def f():\n    """Alone."""\n')
    with pytest.raises(DataError, match="give 1 documents but no query"):
        load_pydocs(["bare"])
    (tmp_path / "deadly.py").write_text("import os\nos._exit(7)\n")
    with pytest.raises(DataError, match=r"ended with code 7 .*leave out what fails to import"):
        load_pydocs(["deadly"])


def test_numpy_gives_a_usable_collection() -> None:
    data = load_pydocs()
    names = set(data.doc_ids)
    assert 1300 <= len(names) <= 1700  # 1,514 with numpy 2.4.6
    assert len(data.query_ids) >= 700  # 920
    assert data.doc_ids == sorted(names)
    assert data.info["n_failed_modules"] == 0
    assert set(data.info["packages"]) == {"numpy"}
    assert all(set(grades) <= names - {query} and grades for query, grades in data.qrels.items())
    assert {"numpy.std", "numpy.var"} <= set(data.qrels["numpy.mean"])
    at = data.query_ids.index("numpy.mean")
    assert data.queries[at] == "Compute the arithmetic mean along the specified axis."
    assert not any("See Also\n---" in text for text in data.texts)
    assert data.info["n_see_also_unresolved"] < 0.15 * data.info["n_see_also"]  # 0.08
    assert not any(name.startswith(("numpy.distutils", "numpy.testing")) for name in names)


@pytest.mark.slow
def test_scipy_collection_is_the_same_in_every_process() -> None:
    pytest.importorskip("scipy")
    script = (
        "import hashlib, json; from lgp.data import load_pydocs\n"
        "d = load_pydocs(['numpy', 'scipy'])\n"
        "print(hashlib.sha256(json.dumps([d.texts, d.queries, d.qrels]).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1
