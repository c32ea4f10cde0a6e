"""Documents say what their records say, and no measured number stands outside a block."""

import copy
import doctest
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.documents import (
    arena,
    kept,
    lookahead,
    observations,
    privacy,
    reproduced,
    security,
    words,
)
from benchmarks.documents.__main__ import chosen, main, write_pages
from benchmarks.documents.blocks import (
    NOT_YET,
    Asked,
    Block,
    Measurement,
    Page,
    blocks_of,
    measured,
    outside,
    rendered,
    written,
)
from benchmarks.documents.kept import Record, read, store
from benchmarks.documents.pages import MEASUREMENTS, PAGES
from benchmarks.documents.words import compared, rounded

from benchmarks import changing_laws, liar
from rmab.experiments.registry import figures
from rmab.learning.channel import local_posterior as own_draw
from rmab.privacy import accounting, denoising
from rmab.protocol import planner
from rmab.protocol.config import Federation
from rmab.traces import outcome, samples, verdicts
from tests.learning import test_hidden_steps
from tests.traces import test_backtest

DOCS = Path(__file__).parent.parent.parent / "docs"
RECORDS = read(DOCS / "records")
ASKED_FOR = (
    *("deviations.md", "observations-at-any-gap.md", "what-works-when.md", "lookahead.md"),
    *("privacy.md", "traces.md", "security.md"),
)
CONVERTED = [page.name for page in PAGES]


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


# ------------------------------------------------------------------------------- pages and records


@pytest.mark.parametrize("page", PAGES, ids=CONVERTED)
def test_every_block_is_what_its_record_gives(page):
    kept = text(page.name)
    fresh = written(kept, page, RECORDS)
    assert blocks_of(kept) == blocks_of(fresh), "make docs-numbers ARGS=--render writes it anew"
    assert kept == fresh


def test_every_record_is_kept_and_belongs_to_a_measurement():
    used = {name for page in PAGES for block in page.blocks.values() for name in block.records}
    assert used == set(MEASUREMENTS)
    assert set(RECORDS) == used
    assert not [page.name for page in PAGES if NOT_YET in text(page.name)]


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_a_record_says_when_and_by_which_version_it_was_made(name):
    record = RECORDS[name]
    assert re.fullmatch(r"\d+\.\d+\.\d+", record.version)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", record.date)
    assert record.device
    assert record.command.startswith(("make ", "rmab "))
    assert record.seconds >= 0
    assert record.version in record.source
    assert record.date in record.source


def test_records_tell_of_no_machine_or_folder():
    for path in (DOCS / "records").glob("*.json"):
        found = path.read_text(encoding="utf-8")
        assert not re.search(r"/(tmp|home|work|var|opt|usr|root)/|://", found), path.name


# ------------------------------------------------------------------------ numbers outside of blocks

# A decimal, a power of ten, a share, an error, or a number with a unit of time or memory.
MEASURED = re.compile(
    r"""(?<![\w.:/√])[-+−]?(?:
        \d*\.\d+(?:e[-+]?\d+)?(?![\w.]*\.md) | \d+e[-+]?\d+ | \d[\d,]*\s?%
        | \d[\d,]*\s(?:ms|µs|ns|s|min|minutes|seconds|hours|kB|KB|MB|GB)\b
    )(?!\w) | ±\s*[\d.]+""",
    re.VERBOSE,
)


def short(value: float, form: str = "g") -> str:
    """A number as pages write it."""
    return f"{value:{form}}".replace("e-0", "e-").removeprefix("0")


def share(value: float) -> str:
    return f"{100 * value:g} %"


def allowed(page: str) -> dict[str, str]:
    """Numbers of a page that are set, published or exact: as written, and as computed."""
    if page == "deviations.md":
        return {
            "6e-8": short(2.0**-24, ".0e"),  # what 24 bits resolve
            ".1": short(1e3 * Federation.slot_seconds),  # milliseconds
            "1e-6": short(planner._INDEX_TOLERANCE),
        }
    if page == "observations-at-any-gap.md":
        within = [1 - 2 * k / (test_hidden_steps.DRAWN + 1) for k in (10, 2)]
        return {
            "50 %": share(within[0]),
            "90 %": share(within[1]),
            "10 %": share(round(1 - within[1], 6)),
        }
    if page == "traces.md":
        low, high = changing_laws._LOW, changing_laws._HIGH
        return {
            "2 %": share(verdicts._MIN_MEMORY),
            "75 %": share(verdicts._MIN_ORDER),
            "5 %": share(verdicts._MAX_MORE),
            "85 %": share(verdicts._NEARLY_BEST),
            ".1": short(verdicts._MAX_CORRELATION),
            "95 %": share(1 - 2 * (1 - outcome._TAIL)),
            "99 %": share(1 - samples._LEAST_FILLED),
            "92 %": share(test_backtest.LEAST_COVERAGE),
            **{short(x): short(x) for x in (*low, *high)},
        }
    if page == "privacy.md":
        ripple = 2 * math.exp(-2 * math.pi**2 * accounting._SMOOTHING**2)  # Poisson summation
        return {
            "± 3": "± 3" if ripple < 3e-34 else "",
            "± 10": "± 10" if 3 * ripple < 1e-33 else "",
            "2.5": short(denoising.LEAST_FOR_SUMMARIES),
            ".1": short(own_draw.VAGUE_WEIGHT),
            ".01": short(own_draw.LEAST_BORROWING),
        }
    if page == "security.md":
        return {".1": short(1e3 * Federation.slot_seconds)}
    return {}


def told(page: str) -> list[str]:
    """Numbers that look measured in the text of a page: without its blocks, code and links."""
    found = outside(text(page))
    found = re.sub(r"^```.*?^```", "", found, flags=re.DOTALL | re.MULTILINE)
    found = re.sub(r"^(?: {4}|\t).*$", "", found, flags=re.MULTILINE)
    found = re.sub(r"`[^`]*`", "", found)
    found = re.sub(r"\]\([^)]*\)", "]", found)
    return [match.group() for match in MEASURED.finditer(found)]


@pytest.mark.parametrize("page", CONVERTED)
def test_no_measured_number_stands_outside_a_block(page):
    exceptions = allowed(page)
    assert [number for number in told(page) if number not in exceptions] == []
    assert set(exceptions) <= set(told(page)), "an exception that the page does not need"
    assert {text: exceptions[text] for text in exceptions} == {text: text for text in exceptions}


@pytest.mark.parametrize(
    "sentence",
    [
        "it earns .974 a slot",
        "12 % more",
        "3.2 ms",
        "± .002",
        "2e-5",
        "-0.5",
        "about 40 µs",
        "1.5 times",
    ],
)
def test_numbers_that_look_measured_are_found(sentence):
    assert MEASURED.search(sentence)


@pytest.mark.parametrize("sentence", ["K = 2", "Fig. 11", "1,000 slots", "v2", "docs/a.md"])
def test_other_numbers_are_not(sentence):
    assert not MEASURED.search(sentence)


# ------------------------------------------------------------------------------------ the machinery

MADE = Record("make x", "0.1.0", "2026-01-31", "a CPU", 3, 1000, 1.0, {"mean": 0.5})
SHOWN = Page("a.md", {"x": Block(lambda record: f"It is {record.data['mean']}.", ("x",))})
MARKED = "Before.\n\n<!-- numbers: x -->\nold\n<!-- /numbers -->\n\nAfter 1.5.\n"


def test_a_block_is_replaced_and_the_rest_stays():
    fresh = written(MARKED, SHOWN, {"x": MADE})
    assert fresh == (
        "Before.\n\n<!-- numbers: x -->\nIt is 0.5.\n\n*`make x`: 1,000 trials, seed 3; rmab "
        "0.1.0, "
        "2026-01-31.*\n<!-- /numbers -->\n\nAfter 1.5.\n"
    )
    assert written(fresh, SHOWN, {"x": MADE}) == fresh
    assert "0.5" not in outside(fresh)
    assert "1.5" in outside(fresh)


def test_marks_and_blocks_must_be_the_same():
    with pytest.raises(ValueError, match=r"a\.md: the marks are \[\]"):
        written("nothing", SHOWN, {})
    with pytest.raises(ValueError, match="twice"):
        written(MARKED + MARKED, SHOWN, {})


def test_what_was_not_measured_is_said_with_the_command():
    assert rendered(SHOWN.blocks["x"], {}) == f'{NOT_YET} (`make docs-numbers ARGS="x"`)'


def test_a_record_is_read_as_it_was_written(tmp_path):
    odd = replace(MADE, data={"a": float("nan"), "b": [1 / 3, 2], "c": {"d": "e"}})
    kept = store(tmp_path, "x", odd)
    assert kept.data == {"a": None, "b": [0.33333333, 2], "c": {"d": "e"}}
    assert read(tmp_path) == {"x": kept}
    (tmp_path / "y.json").write_text(json.dumps({"mean": 1}))
    with pytest.raises(ValueError, match=r"y\.json: is no record"):
        read(tmp_path)


def test_a_measurement_says_its_command_trials_and_seed(tmp_path):
    measurement = Measurement(lambda asked: {"n": asked.often}, minutes=1, trials=100, seed=7)
    asked = Asked("x", 100, 7, None, tmp_path, print)
    usual = measured("x", measurement, asked)
    assert usual.command == 'make docs-numbers ARGS="x"'
    assert (usual.trials, usual.seed, usual.data) == (100, 7, {"n": 100})
    few = measured("x", measurement, replace(asked, trials=5))
    assert few.command == 'make docs-numbers ARGS="x --trials 5"'
    assert few.data == {"n": 5}


def test_names_are_of_records_or_pages():
    assert chosen(["lookahead-many"]) == ["lookahead-many"]
    assert "lookahead-exact" in chosen(["lookahead.md"])
    assert all(MEASUREMENTS[name].folder is None for name in chosen([]))
    with pytest.raises(ValueError, match="no record or page 'motor'"):
        chosen(["motor"])


def test_a_folder_that_is_missing_is_named(tmp_path, capsys):
    assert main(["paper", "--from", str(tmp_path), "--docs", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "claims.json is not there: `make reproduce` writes it" in error


def test_pages_are_rendered_from_the_records_beside_them(tmp_path):
    (tmp_path / "records").mkdir()
    for page in PAGES:
        (tmp_path / page.name).write_text(text(page.name), encoding="utf-8")
    changed_now, errors = write_pages(tmp_path)
    assert set(changed_now) <= set(CONVERTED)  # nothing is measured there
    assert errors == []
    for path in (DOCS / "records").iterdir():
        (tmp_path / "records" / path.name).write_bytes(path.read_bytes())
    assert set(write_pages(tmp_path)[0]) == set(changed_now)
    assert write_pages(tmp_path) == ([], [])
    for page in PAGES:
        assert (tmp_path / page.name).read_text(encoding="utf-8") == text(page.name)


@pytest.mark.parametrize(
    ("difference", "error", "word"),
    [(0.5, 0.1, "more"), (-0.5, 0.1, "less"), (0.39, 0.1, "undecided"), (0.1, 0.0, "more")],
)
def test_words_follow_from_the_difference_and_its_error(difference, error, word):
    assert compared(difference, error) == word


def test_the_examples_of_words_hold():
    for module in (words, kept):
        assert doctest.testmod(module).failed == 0


# ------------------------------------------------------------------------ words follow from numbers


def changed(name: str, change: Callable[[Any], None]) -> Record:
    """A kept record with other numbers."""
    data = copy.deepcopy(RECORDS[name].data)
    change(data)
    return replace(RECORDS[name], data=data)


def block(page: Page, name: str, record: Record) -> str:
    return page.blocks[name].render(record)


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        (0.02, "with 8 arms, K = 3 it earns more than Whittle"),
        (-0.02, "with 8 arms, K = 3 it earns less than Whittle"),
        (0.003, "with 8 arms, K = 3 a difference to Whittle is undecided"),
    ],
)
def test_what_more_arms_earn_follows_from_the_difference(difference, said):
    def change(data):
        data["8 arms, K = 3"]["apart"]["whittle - lookahead"] = [-difference, 0.001]

    text = block(lookahead.PAGE, "lookahead-many", changed("lookahead-many", change))
    assert said.casefold() in text.casefold()


def test_learners_are_compared_by_their_paired_difference():
    def change(data):
        data["K = 2"]["apart"]["fedtswi-gap - fedts-lookahead-gap"] = [0.0051, 0.0004]

    text = block(lookahead.PAGE, "lookahead-learning", changed("lookahead-learning", change))
    assert (
        "- K = 2: over all slots `fedts-lookahead-gap` earns .0051 ± .0004 less a slot than "
        "`fedtswi-gap`." in text
    )


def test_a_p_value_that_is_no_chance_is_said():
    def change(data):
        data["by state"][3] = 1e-9

    kept = block(observations.PAGE, "calibration-channels", RECORDS["calibration-channels"])
    assert "the draws are off" not in kept
    found = changed("calibration-channels", change)
    assert "there the draws are off" in block(observations.PAGE, "calibration-channels", found)


def test_verdicts_are_counted_and_shown():
    def change(data):
        for figure in data["figures"].values():
            for claim in figure["claims"]:
                claim["verdict"] = "held"
        data["figures"]["fig06"]["claims"][0]["verdict"] = "contradicted"

    text = block(reproduced.DEVIATIONS, "claims-paper", changed("paper", change))
    claims = sum(
        len(RECORDS["paper"].data["figures"][each.name]["claims"])
        for each in figures()
        if each.section == "paper"
    )
    assert text.startswith(f"{claims} claims: {claims - 1} held and 1 contradicted.")
    assert text.count("**contradicted**") == 1


def test_policies_of_the_arena_are_placed_by_their_ties():
    def change(data):
        policies = data["problems"]["c1"]["policies"]
        policies["fedtswi"].update(mean=0.5, tied=[])
        policies["feducb-wi"].update(mean=0.4)

    def tied(data):
        data["problems"]["c1"]["policies"]["fedtswi"]["tied"] = ["feducb-wi"]

    text = block(arena.PAGE, "arena-behind", changed("arena", change))
    assert re.search(r"ahead of it on [^.]*`c1`", text)
    text = block(arena.PAGE, "arena-behind", changed("arena", tied))
    assert not re.search(r"(ahead of it|baselines,) on [^.;]*`c1`", text)


def test_losses_of_privacy_are_told_by_the_cases_of_the_figure():
    (figure,) = figures([privacy.PRIVACY])
    losses = {point.label: [n / 1000, 1e-5] for n, point in enumerate(figure.variants, start=1)}
    record = replace(MADE, data={"losses": losses})
    text = block(privacy.PAGE, "privacy-losses", record)
    for label in ("M = 16, no noise", "M = 64, epsilon = 1", "M = 4, epsilon = 8"):
        assert rounded(losses[label]) in text
    own, alone = losses["M = 4, epsilon = 1"][0], losses["alone"][0]
    assert ("they gain by the sums" if own < alone else "they lose by the sums") in text
    others = block(privacy.PAGE, "privacy-adversaries", record)
    assert others.count("| .0") >= 12  # a cell for nearly every case
    assert rounded(losses["M = 16, 5 groups, the sum of one is a lie"]) in others


def test_random_channels_are_counted_by_what_is_certain():
    gains = {"gain": [0.003, -0.003, 0.001], "gain, se": [5e-4, 5e-4, 5e-4]}
    text = block(privacy.PAGE, "privacy-random", replace(MADE, data={"gains": gains}))
    assert "On 3 draws of channels" in text
    assert "more on 1, less on 1, and on 1 the difference is undecided" in text


def test_what_a_liar_costs_is_told_where_it_is_certain():
    def cell(reward, refused=False):
        return {"reward": [reward, 0.004], "refused": refused}

    claims = list(liar.CLAIMS)
    rewards = {
        "before": dict(zip(claims, map(cell, (0.98, 0.90, 0.51, 0.51)), strict=True)),
        "cap = 2": {
            **dict(zip(claims[:3], map(cell, (0.98, 0.97, 0.96)), strict=True)),
            claims[3]: cell(0.96, refused=True),
        },
    }
    scores = {"honest": [-1.0, 4.0, 30], liar.LIAR: [16.0, 40.0, 10]}
    data: dict[str, Any] = {"rewards": rewards, "scores": scores, "random": 0.663}
    text = block(security.PAGE, "liar", replace(MADE, data=data))
    assert "refused; .960 ± .004" in text
    assert "- before: no limit at all: a liar costs .080 ± .008 (honest rate)" in text
    assert "- `cap = 2`: a liar costs nothing that this many trials show." in text
    assert "whoever looks can tell" in text
    data["scores"]["honest"][1] = 20.0
    assert "the two overlap" in block(security.PAGE, "liar", replace(MADE, data=data))


def test_plans_of_agents_own_are_timed():
    asked = Asked("own-plan-cost", 1, 0, None, DOCS, print)
    found = privacy.PAGE.measurements["own-plan-cost"].measure(asked)
    assert isinstance(found, dict)
    assert all(milliseconds > 0 for milliseconds in found.values())


def test_lines_keep_a_number_with_its_unit_and_its_error():
    sentence = " ".join(["it earns .0123 ± .0045 or 12 % more"] * 9)
    page = Page("a.md", {"x": Block(lambda record: sentence, ("x",))})
    lines = rendered(page.blocks["x"], {"x": MADE}).split("\n\n")[0].splitlines()
    assert " ".join(lines) == sentence
    assert len(lines) > 2
    assert not [line for line in lines if line.startswith(("%", "±")) or line.endswith("±")]


def test_a_page_that_cannot_be_rendered_keeps_no_other_from_it(tmp_path, capsys):
    for page in PAGES:
        (tmp_path / page.name).write_text(text(page.name), encoding="utf-8")
    store(tmp_path / "records", "lookahead-many", replace(MADE, data={"8 arms": {}}))
    assert main(["--render", "--docs", str(tmp_path)]) == 1
    found = capsys.readouterr()
    assert "error: lookahead.md is not rendered: KeyError" in found.err
    assert "traces.md" in found.out
    assert (tmp_path / "lookahead.md").read_text(encoding="utf-8") == text("lookahead.md")
