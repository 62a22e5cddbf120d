"""The examples of the documentation run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "existing-index.md"


def blocks(marker: str) -> list[tuple[str, str]]:
    """(language, code) of the fenced blocks between a marker and the next heading."""
    text = PAGE.read_text()
    part = text[text.index(f"<!-- {marker} -->") :]
    end = part.find("\n## ")
    return re.findall(r"```(python|sh)\n(.*?)```", part if end < 0 else part[:end], re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["hnswlib", "faiss", "usearch", "repair"])
def test_the_examples_run(example: str, tmp_path: Path) -> None:
    pytest.importorskip({"usearch": "usearch.index", "repair": "hnswlib"}.get(example, example))
    scripts = blocks(f"example {example}")
    assert [language for language, _ in scripts] == ["python", "sh", "python"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    setup = blocks("setup")[0][1]
    for language, code in scripts:
        if language == "sh":
            command = ["sh", "-ec", code]
        else:
            command = [sys.executable, "-c", f"{setup}\n{code}"]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
