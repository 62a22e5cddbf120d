"""The report page: its numbers from the JSON lines again, safe text, layout in a browser."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from lgp.gather import missing_jobs, run_names
from lgp.report import main
from lgp.stats import holm

EVIL = 'a<script>alert(1)</script> & "b" \\x_%$y$'
POINTS = [("width", 10), ("width", 20), ("budget", 100), ("budget", 500)]


def make_run(folder: Path, dataset: str, n: int, shift: float, seed: int, **config: Any) -> Path:
    """A finished run of three graphs and two rankings, with values drawn from nothing random."""
    folder.mkdir(parents=True)
    lines = []
    for ranking in ("greedy", "rerank"):
        for mode, value in POINTS:
            for place, graph in enumerate(("vanilla", "llm", "uniform")):
                for graph_seed in (0, 1):
                    for q in range(n):
                        x = ((7 * q + 3 * place + value + graph_seed + seed) % 11) / 20
                        x += 0.1 + min(0.3, value / 1500) + shift * place
                        lines.append({
                            "graph": "vanilla" if place == 0 else "refined",
                            "selector": "none" if place == 0 else graph, "seed": graph_seed,
                            "ranking": ranking, "mode": mode, "value": value, "query_id": f"q{q}",
                            "n_dist": value * 9 + place, "n_returned": 10, "reach": x,
                            "ndcg_at_5": x, "ndcg_at_10": x, "recall_at_5": x / 2,
                            "recall_at_10": x / 3,
                        })  # fmt: skip
    (folder / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {"name": "s", "dataset": {"kind": "beir"}, "run_dir": str(folder),
                "refine": {"selector": "llm", "controls": ["uniform"]}} | config  # fmt: skip
    graph = {"graph": "refined", "selector": "llm", "seed": 0, "n_edits": 5, "n_nodes": 9,
             "degree_mean": 3.5, "degree_min": 1, "degree_max": 4, "in_degree_max": 5,
             "n_unreachable": 0, "n_became_unreachable": 0, "n_in_degree_zero": 0, "n_eligible": 9,
             "n_edits_wanted": None, "n_edits_surviving": 4, "changed_neighborhoods": 0.5,
             "seconds": 30.0, "account": {"asked": 9, "replayed": 0, "tokens": 900, "seconds": 15.0,
             "output_tokens": 90, "chosen": 9, "none": 0, "unreadable": 0, "anchors": 9},
             "structure": {"hub_share": 0.25, "strongly_connected_share": 1.0,
             "path_length": {"mean": 2.0}, "in_degree": {"p99": 4}}}  # fmt: skip
    summary = {"dataset": dataset, "n_documents": 9, "n_nodes": 9, "n_queries": n,
               "n_queries_without_relevant": 0, "n_short_lists": 0, "graphs": [graph]}  # fmt: skip
    versions = {"commit": "abc", "packages": {"torch": "2"}, "threads": 1, "device": "cpu"}
    for name, value in (("config", settings), ("summary", summary), ("versions", versions)):
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sweep") / "runs"
    make_run(place / "0", "alpha", 12, 0.05, 0)
    make_run(place / "1", "beta", 40, -0.02, 3)
    make_run(place / "2", EVIL, 15, 0.0, 5)
    (place / "3").mkdir()
    (place / "3" / "config.json").write_text("{}")
    (place / "3" / "error.txt").write_text("Traceback\nOSError: disk <full>\n")
    assert main([str(place)]) == 0
    return place


def table(sweep: Path, name: str) -> list[dict[str, str]]:
    with open(sweep / "report" / "tables" / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def per_query(
    folder: Path, graph: str, ranking: str, mode: str, value: int, metric: str
) -> dict[str, float]:
    found = defaultdict(list)
    for text in (folder / "queries.jsonl").read_text().splitlines():
        x = json.loads(text)
        label = x["selector"] if x["graph"] == "refined" else x["graph"]
        if (label, x["ranking"], x["mode"], x["value"]) == (graph, ranking, mode, value):
            found[x["query_id"]].append(x[metric])
    return {query: fmean(values) for query, values in found.items()}


def folders(sweep: Path) -> dict[str, Path]:
    return {record["run"]: sweep / str(i) for i, record in enumerate(table(sweep, "runs"))}


def test_numbers_are_those_of_the_json_lines(sweep: Path) -> None:
    where = folders(sweep)
    records = table(sweep, "quality")
    assert len(records) == 3 * 2 * 2 * len(POINTS) * 4  # runs, rankings, metrics, points, rows
    for r in records:
        at = (r["ranking"], r["mode"], int(r["value"]), r["metric"])
        own = per_query(where[r["run"]], r["graph"], *at)
        assert float(r["mean"]) == pytest.approx(100 * fmean(own.values()))
        if not r["base"]:
            continue
        base = per_query(where[r["run"]], r["base"], *at)
        gains = [own[q] - base[q] for q in own]
        assert float(r["difference"]) == pytest.approx(100 * fmean(gains))
        assert float(r["relative_pct"]) == pytest.approx(100 * fmean(gains) / fmean(base.values()))
        score = [sum(g > 1e-12 for g in gains), sum(abs(g) <= 1e-12 for g in gains),
                 sum(g < -1e-12 for g in gains)]  # fmt: skip
        assert [int(r[x]) for x in ("wins", "ties", "losses")] == score
        assert float(r["low"]) <= float(r["difference"]) <= float(r["high"])


def test_p_is_adjusted_over_runs(sweep: Path) -> None:
    families = defaultdict(list)
    for r in table(sweep, "quality"):
        if r["base"]:
            key = (
                r["ranking"],
                r["metric"],
                r["mode"],
                r["value"],
                r["graph"],
                r["base"] == "vanilla",
            )
            families[key].append(r)
    for own in families.values():
        assert [float(r["p_holm"]) for r in own] == pytest.approx(
            holm([float(r["p"]) for r in own])
        )
        for r in own:
            excludes = float(r["low"]) > 0 or float(r["high"]) < 0
            shown = "none"
            if excludes and float(r["p_holm"]) <= 0.05:
                shown = "gain" if float(r["difference"]) > 0 else "loss"
            assert r["shown"] == shown


def test_averages_effort_and_verdicts(sweep: Path) -> None:
    quality = table(sweep, "quality")
    for a in table(sweep, "averages"):
        own = [
            r for r in quality
            if all(r[k] == a[k] for k in ("ranking", "metric", "mode", "value", "graph"))
            and r["base"] in ("", "vanilla")
        ]  # fmt: skip
        assert len(own) == 3
        assert float(a["mean"]) == pytest.approx(fmean(float(r["mean"]) for r in own))
    where = folders(sweep)
    for e in table(sweep, "effort"):

        def curve(graph: str, e: dict[str, str] = e) -> list[tuple[int, float]]:
            return [
                (b, fmean(per_query(where[e["run"]], graph, e["ranking"], "budget", b,
                                    e["metric"]).values())) for b in (100, 500)
            ]  # fmt: skip

        (_, low), (_, high) = curve("vanilla")
        assert high > low
        assert float(e["vanilla_needs"]) == pytest.approx(500)
        (_, first), (_, last) = curve(e["graph"])
        if first >= high:
            assert float(e["needs"]) == 100
        elif last >= high:
            assert float(e["needs"]) == pytest.approx(100 + 400 * (high - first) / (last - first))
        else:
            assert e["needs"] == ""
    for v in table(sweep, "verdicts"):
        mode, value = v["at"].split()
        own = [
            r for r in quality
            if (r["ranking"], r["mode"], r["value"], r["graph"], r["base"], r["metric"])
            == (v["ranking"], mode, value, v["graph"], v["base"], "ndcg_at_10")
        ]  # fmt: skip
        for word in ("gain", "loss", "none"):
            assert int(v[word]) == sum(r["shown"] == word for r in own)


class Reader(HTMLParser):
    """Tables by id as rows of cells, and every attribute that could fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.fetches: list[str] = []
        self.tags: set[str] = set()
        self._rows: list[list[str]] | None = None
        self._cell = False

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        values = dict(attrs)
        self.fetches += [str(v) for k, v in attrs if k in ("src", "href", "xlink:href", "data")]
        if tag == "table":
            self._rows = self.tables.setdefault(str(values["id"]), [])
        elif tag == "tr" and self._rows is not None:
            self._rows.append([])
        elif tag in ("td", "th") and self._rows is not None:
            self._rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._cell and self._rows:
            self._rows[-1][-1] += data


@pytest.fixture(scope="module")
def page(sweep: Path) -> Reader:
    reader = Reader()
    reader.feed((sweep / "report" / "index.html").read_text(encoding="utf-8"))
    return reader


def test_the_page_shows_what_the_files_hold(sweep: Path, page: Reader) -> None:
    head, *rows = page.tables["table-quality"]
    lines = table(sweep, "quality")
    assert len(rows) == len(lines)
    at = head.index("mean"), head.index("difference"), head.index("Holm p")
    for row, line in zip(rows, lines, strict=True):
        assert row[at[0]] == f"{float(line['mean']):.1f}"
        if line["base"]:
            assert row[at[1]] == f"{float(line['difference']):+.1f}"
            assert row[at[2]] == f"{float(line['p_holm']):.4f}"
    assert {"table-runs", "table-cost", "table-structure", "table-paper", "table-effort",
            "table-verdicts", "table-averages"} <= set(page.tables)  # fmt: skip
    cost = dict(zip(page.tables["table-cost"][0], page.tables["table-cost"][1], strict=True))
    assert (cost["minutes"], cost["model calls"], cost["waiting %"]) == ("0.50", "9", "50")


def test_nothing_is_fetched_and_no_text_of_a_file_becomes_code(sweep: Path, page: Reader) -> None:
    text = (sweep / "report" / "index.html").read_text(encoding="utf-8")
    assert "script" not in page.tags and "link" not in page.tags and "img" not in page.tags
    assert all(target.startswith("#") for target in page.fetches)
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text
    assert "Content-Security-Policy" in text
    assert len(set(re.findall(r'\bid="([^"]+)"', text))) == len(re.findall(r'\bid="([^"]+)"', text))
    assert "disk &lt;full&gt;" in text  # the job that is missing, and why
    latex = (sweep / "report" / "tables" / "quality.tex").read_text(encoding="utf-8")
    assert r"\textbackslash{}x\_\%\$y\$" in latex
    body = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert len({len(re.findall(r"(?<!\\)&", line)) for line in body}) == 1


def test_the_same_runs_give_the_same_bytes(sweep: Path, tmp_path: Path) -> None:
    assert main([str(sweep), "--out", str(tmp_path)]) == 0
    first = sweep / "report"
    names = sorted(p.relative_to(first) for p in first.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file())
    assert {p.suffix for p in names} == {".html", ".png", ".svg", ".csv", ".tex"}
    for name in names:
        assert (first / name).read_bytes() == (tmp_path / name).read_bytes(), name


def test_one_run_and_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "one", "alpha", 12, 0.05, 0)
    assert main([str(run)]) == 0
    text = (run / "report" / "index.html").read_text(encoding="utf-8")
    assert "llm vs vanilla at width 20" in text and "Mean of the runs" not in text
    other = make_run(tmp_path / "two", "alpha", 12, 0.05, 0, index={"max_degree": 8})
    assert main([str(run), str(other)]) == 0
    assert (tmp_path / "report" / "index.html").is_file()
    (run / "versions.json").write_text("{")
    assert main([str(run)]) == 2
    assert "versions.json is not JSON" in capsys.readouterr().err


def test_names_and_missing_jobs(sweep: Path) -> None:
    configs = [{"index": {"max_degree": d}, "run_dir": str(d)} for d in (8, 16)]
    assert run_names(configs, ["a", "a"], ["x", "y"]) == ["max_degree 8", "max_degree 16"]
    assert run_names(configs, ["a", "b"], ["x", "y"]) == ["a, max_degree 8", "b, max_degree 16"]
    (sweep / "shard").mkdir()
    for name in ("config.json", "shard.json"):
        (sweep / "shard" / name).write_text("[]")
    (line,) = missing_jobs([sweep])
    assert line.startswith("3 is missing") and "OSError: disk <full>" in line


MEASURE = """<script>
const found = [innerWidth, document.scrollingElement.scrollWidth, []];
for (const svg of document.querySelectorAll('svg')) {
  const box = svg.getBoundingClientRect();
  found[2].push([box.width, box.height]);
}
const small = [...document.querySelectorAll('p, li, td, th, figcaption, summary')]
  .map(x => parseFloat(getComputedStyle(x).fontSize));
found.push(Math.min(...small));
document.title = 'measured ' + JSON.stringify(found);
</script>"""


def browsers() -> Iterator[str]:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if (path := shutil.which(name)) is not None:
            yield path


@pytest.mark.slow
@pytest.mark.parametrize("size", [(360, 780), (390, 844), (1280, 900)])
def test_a_browser_shows_it(sweep: Path, tmp_path: Path, size: tuple[int, int]) -> None:
    browser = next(browsers(), None)
    if browser is None:
        pytest.skip("no chromium, chromium-browser or google-chrome: apt-get install chromium")
    text = (sweep / "report" / "index.html").read_text(encoding="utf-8")
    copy = tmp_path / "copy.html"
    # The page allows no script: only this copy, made to be measured, does.
    copy.write_text(
        re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text) + MEASURE,
        encoding="utf-8",
    )
    # A window is at least 500 pixels wide in headless mode; a frame can be as narrow as a phone.
    frame = (
        f'<iframe src="copy.html" style="width:{size[0]}px;height:{size[1]}px;border:0"></iframe>'
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
             "--enable-logging=stderr", "--virtual-time-budget=4000",
             f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000"]  # fmt: skip
    read = tmp_path / "read.html"
    read.write_text(
        frame + "<script>onload = () => { document.title = "
        "document.querySelector('iframe').contentDocument.title }</script>", encoding="utf-8",
    )  # fmt: skip
    made = subprocess.run([browser, *flags, "--dump-dom", read.as_uri()], capture_output=True,
                          text=True, timeout=120)  # fmt: skip
    found = re.search(r"<title>measured (\[.*?\])</title>", made.stdout)
    assert found, made.stderr[-2000:]
    inner, scroll, boxes, smallest = json.loads(found[1].replace("&quot;", '"'))
    assert inner == size[0] and scroll <= inner
    assert len(boxes) > 20 and all(w > 100 and h > 60 for w, h in boxes)
    assert smallest >= 15
    plain = subprocess.run([browser, *flags, "--dump-dom",
                            (sweep / "report" / "index.html").as_uri()], capture_output=True,
                           text=True, timeout=120)  # fmt: skip
    assert "CONSOLE" not in plain.stderr and "CONSOLE" not in made.stderr
