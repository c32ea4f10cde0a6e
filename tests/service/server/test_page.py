"""The page of a federation in a real browser, before a server whose answers are scripted."""

import contextlib
import os
import re
import shutil
import time
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from rmab.errors import FederationError
from rmab.service.server.page import ASSETS, asset
from tests.service.support.scripted_page import (
    NOTHING_YET,
    NOW,
    PAPER,
    Answer,
    Served,
    agent,
    channel,
    fading,
    machine,
    many,
    overview,
)
from tests.service.support.serving import served as running
from tests.service.support.serving import spectrum

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
PATIENCE = 60_000  # ms; a busy machine may be slow
HOSTILE = '<img src=x onerror="document.title=1">'


class Shown(NamedTuple):
    """A page in the browser, the server behind it, and all that went wrong or was asked."""

    page: Page
    served: Served
    wrongs: list[str]
    requests: list[str]

    def open(self, answer: Answer | None = None) -> Page:
        if answer is not None:
            self.served.answer = answer
        self.page.goto(self.served.url)
        expect(self.page.locator("#link-word")).to_have_text("Live")
        return self.page


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser():
    found = chromium()
    if found is None:
        says = "no chromium on this machine: the browser tests are left out"
        if os.environ.get("RMAB_NO_SKIPS"):
            pytest.fail(says)
        pytest.skip(says)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox"], timeout=PATIENCE
        )
        yield launched
        launched.close()


@contextlib.contextmanager
def tab(browser, **options):
    """A tab, and what goes wrong in it and what it asks for, as they come."""
    context = browser.new_context(locale="en-GB", timezone_id="UTC", **options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    wrongs: list[str] = []
    requests: list[str] = []

    def listen(said):
        if said.type in ("error", "warning"):
            wrongs.append(said.text)

    page.on("console", listen)
    page.on("pageerror", lambda error: wrongs.append(str(error)))
    page.on("request", lambda asked: requests.append(asked.url))
    yield page, wrongs, requests
    context.close()


@pytest.fixture
def shown(browser, request):
    """A tab at the width given by the test (indirectly), on the scripted server."""
    served = Served()
    with tab(browser, **{"viewport": DESKTOP} | getattr(request, "param", {})) as (page, *rest):
        yield Shown(page, served, *rest)
    served.stop()


WIDTHS = pytest.mark.parametrize(
    "shown",
    [
        pytest.param({"viewport": DESKTOP}, id="desktop"),
        pytest.param({"viewport": PHONE, "color_scheme": "dark"}, id="phone"),
    ],
    indirect=True,
)


def wider_than_the_window(page: Page) -> list[str]:
    """Elements that stick out of the window and of no box that scrolls; the page must have none."""
    found: list[str] = page.evaluate(
        """() => {
            const wide = (node) => node.getBoundingClientRect().right > innerWidth + 0.5;
            const boxed = (node) => node.closest(".scroll, .heat-box, pre, caption, thead");
            const all = [...document.body.querySelectorAll("*")];
            const names = all.filter((node) => wide(node) && !boxed(node));
            const root = document.documentElement;
            if (root.scrollWidth > innerWidth) names.push(root);
            return names.map((node) => node.outerHTML.slice(0, 80));
        }"""
    )
    return found


def numbers(path: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+\.?\d*", path)]


class TestAssets:
    def test_every_file_has_its_type(self):
        for name, media_type in ASSETS.items():
            body, says = asset(name)
            assert says == media_type
            assert body

    def test_no_other_file_is_given(self):
        with pytest.raises(FederationError, match=r"asset must be one of .* got '\.\./app\.py'"):
            asset("../app.py")

    def test_nothing_comes_from_elsewhere_and_nothing_is_inline(self):
        html = asset("index.html")[0].decode()
        linked = re.findall(r'(?:src|href)="([^"]*)"', html)
        here = [to for to in linked if not to.startswith(("#", "data:image/svg+xml,"))]
        assert here == ["page.css", "page.js"]
        assert not re.search(r"\sstyle=|<style|\son\w+=|<script(?![^>]*src=)", html)
        written = "".join(asset(name)[0].decode() for name in ASSETS if name != "index.html")
        outside = set(re.findall(r"https?://[^\"' )]+", written))
        assert outside == {"http://www.w3.org/2000/svg"}  # the name of SVG, never fetched
        for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write"):
            assert sink not in written

    def test_modules_import_from_those_to_their_right_alone(self):
        ranks = {"page.js": 0, "reward.js": 1, "arms.js": 1, "tables.js": 1}
        ranks |= {"charts.js": 2, "elements.js": 3, "words.js": 4}
        assert ranks.keys() == {name for name in ASSETS if name.endswith(".js")}
        reached = {"page.js"}
        for name in ranks:
            written = asset(name)[0].decode()
            imports = re.findall(r'from "\./([^"]+)";', written)
            assert len(imports) == len(re.findall(r"\bimport\b", written))
            assert all(ranks[name] < ranks[imported] for imported in imports)
            reached.update(imports)
        assert reached == ranks.keys()  # none is served for nothing


@pytest.mark.browser
class TestWhatIsShown:
    @WIDTHS
    def test_the_federation_at_a_glance(self, shown):
        page = shown.open()
        expect(page.get_by_role("heading", level=1)).to_have_text("spectrum")
        expect(page).to_have_title("spectrum, round 61")
        text = page.inner_text("main")
        for words in ("98.6 % of known dynamics", "of 4 enrolled", "240", "7,320", "radio-4"):
            assert words in text
        for name in ("Reward over time", "Arms", "Agents", "Rounds"):
            expect(page.get_by_role("region", name=name, exact=True).first).to_be_visible()
        assert wider_than_the_window(page) == []
        assert shown.wrongs == []
        assert all(url.startswith(("data:", shown.served.url)) for url in shown.requests)

    def test_the_line_is_the_weighted_mean_of_the_last_ten_rounds(self, shown):
        answer = overview(40)
        page = shown.open(answer)
        last = answer["rewards"][-10:]
        mean = sum(r["slots"] * r["reward"] for r in last) / sum(r["slots"] for r in last)
        expect(page.locator("#tile-reward")).to_have_text(f"{mean:.3f}".lstrip("0"))
        box = page.locator("#reward-chart")
        line = numbers(box.locator("path.mean").get_attribute("d"))
        level = numbers(box.locator("path.level").get_attribute("d"))[1]
        ticks = {
            float(tick.text_content()): float(tick.get_attribute("y"))
            for tick in box.locator("text[text-anchor=end]").all()
            if re.fullmatch(r"[\d.]+", tick.text_content())
        }
        assert len(line) == 2 * 40
        (low, at_low), (high, at_high) = min(ticks.items()), max(ticks.items())
        scale = (at_high - at_low) / (high - low)  # pixels for a unit of reward
        assert line[-1] == pytest.approx(at_low + scale * (mean - low), abs=0.2)
        assert level == pytest.approx(at_low + scale * (0.9852 - low), abs=0.2)

    @WIDTHS
    def test_values_can_be_read_by_pointer_and_by_key(self, shown):
        page = shown.open()
        chart, tip = page.locator("#reward-chart"), page.locator("#reward-chart .tip")
        chart.hover()
        expect(tip).to_contain_text("Round")
        page.mouse.move(0, 0)
        expect(tip).to_be_hidden()
        page.locator("#reward-time-round").press("Tab")
        expect(chart).to_be_focused()
        expect(tip).to_contain_text("Round 60")
        page.keyboard.press("ArrowLeft")
        expect(tip).to_contain_text("Round 59")
        page.keyboard.press("Home")
        expect(tip).to_contain_text("Round 1")
        expect(tip).to_contain_text("slots so far 4")
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()
        page.locator(".arm .chart").first.hover()
        expect(page.locator(".arm .tip").first).to_contain_text("never seen .200")
        assert wider_than_the_window(page) == []

    def test_arms(self, shown):
        page = shown.open()
        second = page.locator(".arm").nth(1)
        expect(second).to_contain_text("reward .9")
        expect(second).to_contain_text("p01.890 .840–.940")
        expect(second).to_contain_text("p11.170 .145–.195")
        expect(second).to_contain_text("46.0 % 5,520 plays")
        bar = second.locator(".range .interval").first
        assert (bar.get_attribute("x1"), bar.get_attribute("x2")) == ("84.00%", "94.00%")
        lines = [numbers(line.get_attribute("d")) for line in second.locator("path.state").all()]
        assert len(lines) == 2
        assert (
            lines[0][1] < lines[1][1]
        )  # p11 < p01: last seen bad is better at age 1 (y goes down)
        expect(second.get_by_role("img")).to_have_attribute(
            "aria-label", re.compile(r"Index of arm 2 by age.*Last seen in state 0: \.801 to")
        )

    @WIDTHS
    def test_arms_of_more_than_two_states(self, shown):
        page = shown.open(overview(5, [*PAPER[:1], fading(0.6)]))
        table = page.get_by_role("table", name=re.compile("Arm 2: probability"))
        assert table.locator("td").all_inner_texts()[:2] == [".700\n.62–.78", ".200\n.12–.28"]
        assert page.locator(".arm").nth(1).locator("path.state").count() == 3
        assert wider_than_the_window(page) == []
        assert shown.wrongs == []

    @WIDTHS
    def test_arms_that_are_always_observed(self, shown):
        page = shown.open(overview(5, [*PAPER[:1], machine(0.6)]))
        card = page.locator(".arm").nth(1)
        expect(card).to_contain_text("reward .9; left alone .2, 0; always observed")
        expect(card).to_contain_text("after a play")
        expect(card).to_contain_text("left alone")
        assert card.get_by_text(".550 .450–.650").count() == 2
        lines = [numbers(line.get_attribute("d")) for line in card.locator("path.state").all()]
        assert len(lines) == 2
        assert all(len(set(line[1::2])) == 1 for line in lines)  # level: of the state, not the age
        expect(card.get_by_role("img")).to_have_attribute(
            "aria-label", re.compile(r"In state 0: \.250 to \.250\. In state 1: \.750 to \.750\. $")
        )
        assert wider_than_the_window(page) == []
        assert shown.wrongs == []

    @WIDTHS
    def test_agents_unlike_the_others_stand_out(self, shown):
        scores = (0.4, None, 23.456, -0.2)
        agents = [agent(lane, f"radio-{lane}", outlier=score) for lane, score in enumerate(scores)]
        page = shown.open(overview(agents=agents))
        cells = page.locator("#agents-list tbody td[data-label=Outlier]")
        assert cells.all_inner_texts() == [".4", "–", "23", "−.2"]
        alarmed = page.locator("#agents-list td.alarm[data-label=Outlier]")
        expect(alarmed).to_have_text("23")
        expect(alarmed).to_have_attribute("title", re.compile("not chance"))
        page.get_by_role("button", name="Unlike the others 1").click()
        assert page.locator("#agents-list tbody th").all_inner_texts() == ["radio-2"]
        assert not shown.wrongs

    @WIDTHS
    def test_sums_alone(self, shown):
        group = {"group": 1, "opening": 7, "at": NOW - 5, "agents": 3, "slots": 12}
        privacy: dict[str, Any] = {
            "mode": "sums",
            "least": 3,
            "groups": [group | {"result": "added", "opened_slots": 90}],
            "waiting": [],
            "waiting_slots": 4,
            "impossible": 0,
            "helper": {"url": "https://h", "up": False, "since": NOW, "trouble": HOSTILE},
        }
        page = shown.open(overview(5))
        expect(page.locator("#agents-sums")).to_be_hidden()
        shown.served.answer = overview(6) | {"privacy": privacy}
        note = page.locator("#agents-sums")
        expect(note).to_contain_text("learns sums of at least 3 agents")
        expect(note).to_contain_text("opening 7, 3 agents, 12 slots")
        expect(note).to_contain_text("4 slots wait for an opening. The helper is down: <img")
        expect(note).to_contain_text("outliers and correlation of agents are not known")
        expect(note).not_to_contain_text("left")
        noise = {"epsilon": 0.5, "delta": 1e-6}
        left = [{**privacy["groups"][0], "releases_left": 38}]
        shown.served.answer = overview(7) | {"privacy": {**privacy, **noise, "groups": left}}
        expect(note).to_contain_text(
            "Sums have noise, ε = .5, δ = 1e-6 for one slot of a log, its plays given. "
            "The group was last opened"
        )
        expect(note).to_contain_text("12 slots. 38 releases left.")

    @WIDTHS
    def test_noise_that_the_server_draws(self, shown):
        group: dict[str, Any] = {"group": 1, "opening": 2, "at": NOW - 5, "agents": 3, "slots": 33}
        group |= {"result": "released", "opened_slots": 60, "releases_left": 38}
        privacy = {
            "mode": "noise",
            "least": None,
            "epsilon": 1,
            "delta": 1e-6,
            "groups": [dict.fromkeys(group) | {"group": 1, "releases_left": 40}],
            "waiting": [],
            "waiting_slots": 1,
            "impossible": 0,
            "helper": None,
        }
        answer = overview(6)
        answer["arms"] = [{**arm, "plays": None, "share": None} for arm in answer["arms"]]
        answer["rewards"] = [{**row, "reward": None} for row in answer["rewards"]]
        page = shown.open(answer | {"privacy": privacy})
        note = page.locator("#agents-sums")
        expect(note).to_contain_text(
            "Sums have noise, ε = 1, δ = 1e-6 for one slot of a log, its plays given, "
            "drawn by the server"
        )
        expect(note).to_contain_text("The sum was not released yet. 40 releases left.")
        expect(note).to_contain_text("1 slot waits for a release.")
        expect(note).not_to_contain_text("helper")
        expect(note).not_to_have_class("note alarm")
        expect(page.locator("#tile-reward-aside")).to_have_text("not released")
        expect(page.locator("#empty-title")).to_contain_text("no reward is released")
        expect(page.locator(".arm").first).to_contain_text("Share of plays: not released")
        shown.served.answer = answer | {"privacy": {**privacy, "groups": [group]}}
        expect(note).to_contain_text("released 5 s ago: release 2, 3 agents, 33 slots. 38 releases")
        assert not shown.wrongs

    def test_warnings_stand_above_all_and_go_when_they_no_longer_hold(self, shown):
        says = ["slot_seconds is not set.", f"Two camps: {HOSTILE}"]
        page = shown.open(overview(7, warnings=says))
        lines = page.locator("#warnings li")
        expect(lines).to_have_text(says)
        shown.served.answer = overview(8, warnings=says[1:])
        expect(lines).to_have_text(says[1:])
        shown.served.answer = overview(9)
        expect(page.locator("#warnings")).to_be_hidden()
        assert not shown.wrongs

    def test_an_agent_that_is_not_heard_of_is_silent_and_has_not_left(self, shown):
        quiet = agent(0, "quiet", last_seen=NOW - 10_000, live=False)
        unknown = agent(1, "unknown", last_seen=None, live=False)  # by a clock that was ahead
        page = shown.open(overview(7, agents=[quiet, unknown]))
        expect(page.locator("#agents-list .badge")).to_have_text(["silent", "silent"])
        expect(page.locator("#agents")).not_to_contain_text("left")
        assert not shown.wrongs

    def test_many_arms_and_agents(self, shown):
        page = shown.open(many(40, 300))
        assert page.locator(".arm").count() < 40
        page.get_by_role("button", name="Show all 40 arms").click()
        expect(page.locator(".arm")).to_have_count(40)
        page.get_by_role("button", name="Show all 300 agents").click()
        rows = page.locator("#agents-list tbody tr")
        expect(rows).to_have_count(300)
        height = page.locator("#agents-list .scroll").bounding_box()["height"]
        assert height < 700  # the list scrolls in its place
        for chip, count in (
            ("Late 3", 3),
            ("Not seen yet 3", 3),
            ("Silent 3", 3),
            ("Revoked 3", 3),
        ):
            page.get_by_role("button", name=chip, exact=True).click()
            expect(rows).to_have_count(count)
            state = chip.rsplit(" ", 1)[0].lower()
            assert set(page.locator("#agents-list .badge").all_inner_texts()) == {state}
        assert wider_than_the_window(page) == []
        assert shown.wrongs == []

    def test_order_of_many_arms(self, shown):
        answer = many(40, 1)
        answer["arms"][29] = channel(0.5, 0.5, 0.5, 0.4) | {"estimate": None}
        page = shown.open(answer)
        expect(page.locator(".arm h3").first).to_have_text("Arm 1")
        for order in ("Most played", "Least certain"):
            page.get_by_role("button", name=order).click()
            expect(page.locator(".arm h3").first).to_have_text("Arm 30")
        expect(page.locator(".arm").first).to_contain_text("unknown")

    @WIDTHS
    def test_before_the_first_upload(self, shown):
        page = shown.open(NOTHING_YET)
        expect(page.locator("#empty")).to_contain_text("No uploads yet")
        expect(page.locator("#empty")).to_contain_text(
            f"rmab agent {shown.served.url[:-1]} --token"
        )
        expect(page.locator("#reward-card")).to_be_hidden()
        expect(page.locator("#agents-list")).to_contain_text("No agent is enrolled yet.")
        expect(page.locator(".arm").first).to_contain_text("unknown")
        expect(page.locator(".arm").first).to_contain_text("No index table")
        assert "NaN" not in page.inner_text("body")
        assert wider_than_the_window(page) == []
        assert shown.wrongs == []
        shown.served.answer = overview(1)
        expect(page.locator("#reward-card")).to_be_visible()
        expect(page.locator("#empty")).to_be_hidden()

    @WIDTHS
    def test_names_are_text(self, shown):
        agents = [
            agent(0, HOSTILE),
            agent(1, "x" * 64),
            agent(2, "</script><script>throw 1</script>"),
        ]
        answer = overview(3, agents=agents, plays=1, federation=HOSTILE, policy="<b>wide</b>" * 12)
        answer["arms"] = [
            channel(0.5, 0.5, 0.4, 0.5) | {"index": {"never": "inf", "by_state": [[1], [0]]}}
        ]
        page = shown.open(answer)
        expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
        expect(page.locator("#agents-list tbody th").first).to_have_text(HOSTILE)
        assert page.locator("main img, main script, b:not(.tip b)").count() == 0
        expect(page).to_have_title(f"{HOSTILE}, round 4")
        assert wider_than_the_window(page) == []
        assert shown.wrongs == []


@pytest.mark.browser
class TestLive:
    def test_rounds_and_reward_move_without_a_reload(self, shown):
        page = shown.open(overview(5))
        page.evaluate("window.sameDocument = true")
        before = page.locator("#reward-chart path.mean").get_attribute("d")
        page.get_by_role("button", name="By round").click()
        page.get_by_role("button", name="By slots").focus()
        shown.served.answer = overview(6)
        expect(page.locator("#tile-round")).to_have_text("7")
        assert page.locator("#reward-chart path.mean").get_attribute("d") != before
        expect(page.locator("#rounds-list tbody tr").nth(1)).to_contain_text("6")
        expect(page.get_by_role("button", name="By slots")).to_be_focused()
        assert page.evaluate("window.sameDocument")
        assert [url for url in shown.requests if url.endswith("/")] == [shown.served.url]

    def test_a_lost_server_is_told_and_found_again(self, shown):
        page = shown.open(overview(5))
        shown.served.stop()
        expect(page.get_by_role("status").first).to_have_text("Connection lost, retrying")
        expect(page.locator("#lost")).to_contain_text("the server cannot be reached")
        expect(page.locator("#tile-round")).to_have_text("6")  # what was known stays
        back = Served(shown.served.port)
        try:
            back.answer = overview(8)
            expect(page.locator("#link-word")).to_have_text("Live")
            expect(page.locator("#tile-round")).to_have_text("9")
            expect(page.locator("#lost")).to_be_hidden()
        finally:
            back.stop()

    def test_bad_answers_are_told(self, shown):
        shown.page.clock.install()
        page = shown.open()
        for status, answer, says in (
            (503, "{}", "the server answered 503"),
            (401, "{}", "wants a viewer's credential"),
            (200, "<html>", "the server's answer is no JSON"),
            (200, "{}", "not what this page understands"),
        ):
            shown.served.answer, shown.served.status = answer, status
            page.clock.run_for(5500)  # the longest pause between two tries
            expect(page.locator("#lost")).to_contain_text(says)
        shown.served.answer, shown.served.status = overview(7), 200
        page.clock.run_for(5500)
        expect(page.locator("#link-word")).to_have_text("Live")
        expect(page.locator("#tile-round")).to_have_text("8")

    def test_a_server_that_hangs_is_told(self, shown):
        shown.page.clock.install()
        page = shown.open()
        asked = shown.served.asked
        shown.served.goes_on.clear()
        page.clock.run_for(1100)
        deadline = time.monotonic() + PATIENCE / 1000
        while shown.served.asked == asked and time.monotonic() < deadline:
            time.sleep(0.01)
        page.clock.run_for(5100)
        expect(page.locator("#lost")).to_contain_text("no answer within 5 s")
        shown.served.goes_on.set()
        page.clock.run_for(1100)
        expect(page.locator("#link-word")).to_have_text("Live")

    def test_a_hidden_tab_asks_nothing(self, shown):
        shown.page.clock.install()
        page = shown.open()
        hide = """(hidden) => {
            Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
        page.evaluate(hide, True)
        asked = shown.served.asked
        page.clock.run_for(60_000)
        assert shown.served.asked <= asked + 1  # one may have been on its way
        shown.served.answer = overview(70)
        page.evaluate(hide, False)
        expect(page.locator("#tile-round")).to_have_text("71")
        assert shown.wrongs == []


@pytest.mark.browser
def test_a_real_federation_moves_without_a_reload(browser):
    from rmab.service.demo import Demo

    with Demo(slot_seconds=0.0) as demo, tab(browser, viewport=DESKTOP) as (page, wrongs, requests):
        page.goto(demo.url)
        expect(page.locator("#empty")).to_contain_text("No uploads yet")
        expect(page.locator("#tile-agents")).to_have_text("4")
        seen = []
        for slots in (8, 30):
            reached = [progress.round for progress in demo.play(slots)][-1]
            expect(page.locator("#tile-round")).to_have_text(
                re.compile(f"^({reached}|{reached + 1})$")
            )
            seen.append((reached, page.locator("#reward-chart path.mean").get_attribute("d")))
        assert seen[0][0] < seen[1][0]
        assert seen[0][1] != seen[1][1]
        expect(page.locator("#reward-reference-text")).to_have_text("known dynamics, .985")
        assert page.locator(".arm .interval").count() == 8
        assert page.locator("#agents-list .badge").all_inner_texts() == ["live"] * 4
        assert wrongs == []
        assert [url for url in requests if url == f"{demo.url}/"] == [f"{demo.url}/"]
        assert all(url.startswith(("data:", demo.url)) for url in requests)


@pytest.mark.browser
def test_a_viewer_reads_the_page_with_a_credential(browser, tmp_path):
    """The browser asks for it once, and the page's scripts and questions go with it."""
    with running(tmp_path, spectrum(), open=False) as live:
        given = {"username": "anybody", "password": live.enroll("eye", "viewer")}
        with tab(browser, http_credentials=given) as (page, wrongs, _):
            page.goto(live.url)
            expect(page.locator("#link-word")).to_have_text("Live")
            expect(page.locator("#tile-round")).to_have_text("1")
            assert wrongs == []
