"""Pages: whole HTML that needs nothing else, with every number and every verdict in words."""

import csv
import json
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from rmab.experiments.powers import fit
from rmab.experiments.registry import summary
from rmab.policies.registry import GOSSIP_OPTIONS
from rmab.report.figures_page import write_paper
from rmab.report.page import write_study
from rmab.studies.results import Curve
from rmab.studies.study import KEYS, Study

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """A page taken apart: ids, addresses, text, the tables' rows; tags must close in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self._look(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self._look(tag, attrs)

    def _look(self, tag, attrs):
        self.tags.append(tag)
        for key, value in attrs:
            if key == "id":
                self.ids.append(value)
            if key in ("src", "href", "xlink:href", "action"):
                self.addresses.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def cells(page: Page, width: int) -> dict[str, list[str]]:
    """Rows of a table of that many columns, by their first cell."""
    return {row[0]: row[1:] for row in page.rows if len(row) == width}


@pytest.fixture(scope="module")
def paper(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    path = write_paper(folder, small.drawn)
    assert path == folder / "report.html"
    return folder, Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def study(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    path = write_study(folder, "a <study>", small.several)
    assert path == folder / "report.html"
    return folder, Page(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["paper", "study"])
def test_a_page_needs_nothing_else(kind, request):
    folder, page = request.getfixturevalue(kind)
    assert len(page.ids) == len(set(page.ids))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    for address in page.addresses:
        if address.startswith("#"):
            assert address[1:] in page.ids
        else:
            assert kind == "study" or (folder / address).is_file()
            assert "/" not in address
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert html.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert "@import" not in html
    assert html.count('role="img" aria-label="') == page.tags.count("svg")


def test_the_numbers_of_a_study_are_in_its_table(small, study):
    _, page = study
    rows = cells(page, 5)
    for name, shown in ((small.odd, small.odd), ("whittle", "WI policy whittle")):
        r = small.several[name]
        assert rows[shown] == [
            f"{r.mean:.5f} ± {r.se:.5f}",
            f"{r.final:.5f} ± {r.final_se:.5f}",
            f"{r.episodes:.1f}",
            f"{r.behind:.5f} ± {r.behind_se:.5f}",
        ]
    assert "64 trials" in page.words
    assert "Interrupted" not in page.words


def test_the_settings_and_arms_of_a_study_are_in_it(small, study):
    _, page = study
    settings = cells(page, 2)
    assert settings["Agents M"] == ["2"]
    assert settings["Trials"] == ["64"]
    assert settings["Draws"] == [small.several.study.draws]
    assert settings["Policies"] == [f"{small.odd}, whittle"]
    unread = (*GOSSIP_OPTIONS, "agent")  # agents have a server, and do not differ
    read = [key.label for name, key in KEYS.items() if name not in unread]
    assert set(settings) == {"Setting", "Arms N", *read}
    assert ["2", "0.89", "0.17", "0.9", "0.5174"] in page.rows


def test_text_is_escaped(study):
    folder, page = study
    assert "b" not in page.tags
    assert "Study a <study>" in page.words
    assert "<study>" not in (folder / "report.html").read_text(encoding="utf-8")


def test_a_study_in_a_file_of_that_name_is_no_study_study(small, tmp_path):
    html = write_study(tmp_path, "study", small.several).read_text(encoding="utf-8")
    assert "<h1>Study</h1>" in html
    assert "study study" not in html.lower()


def test_an_interrupted_study_and_one_with_much_noise_say_so(small, tmp_path, monkeypatch):
    monkeypatch.setattr(Study, "cost_warning", property(lambda _: "noise costs 3 agents much"))
    study = replace(small.several.study, trials=1000)
    path = write_study(tmp_path, "s", replace(small.several, study=study, interrupted=True))
    page = Page(path.read_text(encoding="utf-8"))
    assert "Interrupted: 64 of 1000 trials were done" in page.words
    assert "Warning: noise costs 3 agents much." in page.words
    assert cells(page, 2)["Trials"] == ["64 of 1000"]


def test_every_claim_has_its_verdict_in_words(small, paper):
    _, page = paper
    summary = [row for row in page.rows if len(row) == 3]
    for drawn in small.drawn:
        for claim in drawn.claims:
            assert any(row[1] == claim.text and claim.verdict in row[2] for row in summary)
            assert f"Measured: {claim.found}" in page.words
    words = ("held", "exceeded", "contradicted", "undecided", "noted")
    assert {row[2].split()[-1] for row in summary[1:] if len(row[2]) > 2} >= set(words)
    assert {each.name for each in small.drawn} <= set(page.ids)


def test_the_page_opens_with_what_came_out(small, paper):
    _, page = paper
    assert summary(small.drawn) in page.words
    assert page.words.index("What came out") < page.words.index("Claims of the paper")
    assert page.words.index("Claims of the paper") < page.words.index("Claims beyond the paper")
    assert page.words.index("Claims beyond the paper") < page.words.index("What the paper says")


def test_powers_stand_beside_what_tells_whether_they_fit(small, tmp_path):
    arms = next(each for each in small.drawn if each.name == "regret-arms")
    x, mean = np.asarray([4.0, 8, 16]), np.asarray([1.0, 2, 8])
    found = fit(x, Curve(mean, mean / 100))
    assert found is not None
    done = replace(arms, fits={"fedtswi, N = 4 to 16": found})
    page = Page(write_paper(tmp_path, [done]).read_text(encoding="utf-8"))
    (row,) = (row for row in page.rows if row[0] == "fedtswi, N = 4 to 16")
    power, chi2 = f"{found.slope:.3f} ± {found.slope_se:.3f}", f"{found.chi2_per_degree:.1f}"
    assert row[1:] == [power, chi2, "no", "1.00 ± 0.02, 2.00 ± 0.02"]


def test_exact_values_are_shown_with_reasons(paper):
    _, page = paper
    rows = [row for row in page.rows if row[0] == "Optimum"]
    assert ["Optimum", "1.250000", "100.000 %"] in rows
    assert ["Fixed selection fixed", "not known", ""] in page.rows
    assert "fixed: too <large>." in page.words


def test_claims_and_curves_are_written_beside_the_page(small, paper):
    folder, _ = paper
    claims = json.loads((folder / "claims.json").read_text(encoding="utf-8"))
    assert list(claims) == [drawn.name for drawn in small.drawn]
    assert [claim["verdict"] for claim in claims["fig06"]["claims"]] == [
        "held",
        "contradicted",
        "undecided",
        "exceeded",
        "noted",
    ]
    with (folder / "fig06-slots.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    (result,) = small.drawn[0].results[0].values()
    assert len(rows) == 4 * len(result.slots.mean)
    assert [row["variant"] for row in rows[:: len(result.slots.mean)]] == [
        "K = 1",
        "K = 2",
        "K = 3",
        "K = 4",
    ]
    assert float(rows[0]["reward"]) == result.slots.mean[0]
    for name in ("fig13-series.csv", "theory-series.csv", "fig12-episodes.csv", "fig10.png"):
        assert (folder / name).stat().st_size > 1000


def test_drawings_are_whole(small, paper):
    folder, _ = paper
    for drawn in small.drawn:
        pixels = imread(folder / f"{drawn.name}.png")
        assert min(pixels.shape[:2]) > 400
        assert pixels[..., :3].std() > 0.02  # not blank
        root = ElementTree.parse(folder / f"{drawn.name}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"


def test_an_interrupted_figure_shows_what_there_is(small, tmp_path):
    fig06 = small.drawn[0]
    stopped = replace(fig06, results=fig06.results[:2], values=[], claims=[], interrupted=True)
    path = write_paper(tmp_path, [stopped])
    page = Page(path.read_text(encoding="utf-8"))
    assert "Interrupted: 128 of 256 trials were done" in page.words
    assert ["Fig. 6", "not judged: interrupted", ""] in page.rows
    assert "svg" in page.tags


def test_nothing_done_is_said(tmp_path):
    page = Page(write_paper(tmp_path, []).read_text(encoding="utf-8"))
    assert "Interrupted before anything was done" in page.words


def test_the_same_results_give_the_same_bytes(small, paper, tmp_path):
    """Drawn again, one figure of each kind: its files, its claims and its part of the page."""
    folder, _ = paper
    (tmp_path / "report.html").write_text("old", encoding="utf-8")
    kinds = {(each.figure.x, each.figure.y): each for each in small.drawn}
    assert len(kinds) == 9
    write_paper(tmp_path, list(kinds.values()))
    again, before = (
        (each / "report.html").read_text(encoding="utf-8") for each in (tmp_path, folder)
    )
    claims, all_claims = (
        json.loads((each / "claims.json").read_text(encoding="utf-8"))
        for each in (tmp_path, folder)
    )
    for name in (each.name for each in kinds.values()):
        assert claims[name] == all_claims[name]
        start = again.index(f'<section id="{name}">')
        assert again[start : again.index("</section>", start)] in before
    drawn_again = {path.name for path in tmp_path.iterdir()} - {"report.html", "claims.json"}
    assert {f"{each.name}.svg" for each in kinds.values()} <= drawn_again
    for name in drawn_again:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_chapters_stand_in_their_order(small, paper):
    folder, _ = paper
    html = (folder / "report.html").read_text(encoding="utf-8")
    places = [
        html.index(mark)
        for mark in (
            '<section id="fig06">',
            '<section id="theory">',
            "<h1>Learning from observations at any gap</h1>",
            '<section id="regret-horizon">',
            '<section id="regret-arms">',
            "<h1>Beyond the paper: arms of other kinds</h1>",
            '<section id="fading">',
        )
    ]
    assert places == sorted(places)
    assert html.count("<h3>What the paper says</h3>") == 10
    assert html.count("<h3>What is claimed</h3>") == 6


def test_a_chapter_without_figures_is_left_out(small, tmp_path):
    page = Page(write_paper(tmp_path, small.drawn[:1]).read_text(encoding="utf-8"))
    assert "Learning from observations at any gap" not in page.words
    assert "Beyond the paper" not in page.words


def test_a_report_without_the_papers_figures_has_the_title_of_its_own(small, tmp_path):
    beyond = [done for done in small.drawn if done.figure.section == "beyond"]
    html = write_paper(tmp_path, beyond).read_text(encoding="utf-8")
    assert html.count("<h1>") == 1
    assert "<h1>Beyond the paper: arms of other kinds</h1>" in html
    assert "<title>Beyond the paper: arms of other kinds</title>" in html
    assert "The paper's figures" not in html


def test_settings_that_variants_share_stand_once(paper):
    _, page = paper
    start = page.rows.index(["Variant", "Agents M", "Plays in a slot K", "Seed"])
    assert page.rows[start + 1] == ["K = 1, M = 1", "1", "1", "0"]
    assert page.rows[start + 14] == ["K = 2, M = 64", "64", "2", "13"]


def test_copies_of_arms_are_listed_once(paper):
    _, page = paper
    assert "Arms, 1 to 16 copies of each" in page.words
    assert "Arms: equal rates, 4 copies of each" in page.words
    beliefs = [row[0] for row in page.rows if row[1:4] == ["0.1", "0.9", "0.7"]]
    assert set(beliefs) == {"3"}


def test_a_long_table_of_slots_is_left_out(small, tmp_path):
    write_paper(tmp_path, small.drawn[:1], max_slot_rows=60)
    assert (tmp_path / "fig06-slots.csv").exists()
    (tmp_path / "fig06-slots.csv").unlink()
    write_paper(tmp_path, small.drawn[:1], max_slot_rows=59)
    assert not (tmp_path / "fig06-slots.csv").exists()
    assert (tmp_path / "fig06-episodes.csv").exists()
    assert "fig06-slots.csv" not in (tmp_path / "report.html").read_text(encoding="utf-8")
