"""Pages: the report of a study and the report of the paper's figures.

A page is one HTML file that needs no other: style and drawings stand in it. All text passes
through `_text`, which escapes it; only what is markup already, a `Markup`, does not.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import numpy as np

from rmab import __version__
from rmab.arms import Arms, stationary_belief
from rmab.report import plots
from rmab.studies.figure import Claim, Drawn
from rmab.studies.results import Results
from rmab.studies.running import Values
from rmab.studies.study import Study

__all__ = ["write_paper", "write_study"]


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def write_study(folder: Path, name: str, results: Results) -> Path:
    """figure.png, figure.svg and report.html of a study; returns the report's path."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"Average reward over the slots by policy, study {name}; the table below has the means."
    drawing = plots.save(plots.study(results), folder, "figure", about)
    files = ["results.json", "slots.csv", "episodes.csv", "figure.png", "figure.svg"]
    body = [
        _tag("h1", f"Study {name}"),
        _what_was_run(results),
        _drawing(drawing, CAPTIONS["slot", "reward"]),
        _tag("h2", "Means"),
        _tag("p", MEANS),
        _means([("", results)]),
        _tag("h2", "Settings"),
        _settings([("", results.study, results)]),
        _arms([("", results.study.arms)]),
        _files(files),
    ]
    return _write(folder, f"Study {name}", body)


def write_paper(folder: Path, drawn: list[Drawn]) -> Path:
    """Drawings, tables and claims of the paper's figures, and report.html; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    claims = {each.name: each.to_json() for each in drawn}
    text = json.dumps(claims, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "claims.json").write_text(text + "\n", encoding="utf-8")
    own = [each for each in drawn if not each.figure.beyond]
    beyond = [each for each in drawn if each.figure.beyond]
    body = [
        _tag("h1", "The paper's figures, run again"),
        _tag("p", INTRODUCTION),
        _overview(drawn),
        *(_section(folder, each) for each in own),
    ]
    if beyond:
        body += [_tag("h1", "Beyond the paper: arms of other kinds"), _tag("p", BEYOND)]
        body += [_section(folder, each) for each in beyond]
    return _write(folder, "The paper's figures, run again", body)


# -------------------------------------------------------------------------------------------- texts

INTRODUCTION = (
    "Each figure of the paper's simulations was computed anew and drawn. Below each stands what "
    "the paper says of it, what was measured, and whether it held. A difference counts when it "
    "exceeds four standard errors. Bands in the drawings are 95 %: 1.96 standard errors to each "
    "side. Rewards are averages per agent and slot, and regret is counted against the Whittle "
    "(WI) policy with known dynamics."
)
BEYOND = (
    "The paper's framework is for arms of any number of states, whose moves may depend on being "
    "played; its simulations are of two-state channels. These studies are of the catalogue. The "
    "dynamics are learnt from nothing in the same way, the indices come from the general solver, "
    "and what is claimed is what the framework promises."
)
MEANS = (
    "Average reward per agent and slot, ± its standard error, over all slots and over the last "
    "tenth of them. Behind whittle: how much less than the Whittle policy with known dynamics on "
    "the same trials; the error is of the difference, trial by trial."
)
_SLOTS = (
    "Rewards are averaged over bins of slots. Regret so far is against the WI policy with known "
    "dynamics on the same trials; negative is better than WI. Bands are 95 %."
)
_EPISODES = "Episodes that at least half of the trials played to the end. Bands are 95 %."
CAPTIONS = {
    ("episode", "reward"): _EPISODES,
    ("episode", "regret"): _EPISODES,
    ("episode", "error"): _EPISODES,
    ("slot", "reward"): _SLOTS,
    ("slot", "theory"): "Measured, beside the bounds of Lemma 1 and Theorem 1 once computed; D is "
    "the span of the optimal relative values. The band is 95 %.",
    ("belief", "value"): "Computed, not simulated. The arm is played where playing is worth more.",
}
WIDE = 600.0  # points; a drawing this wide has two columns
MARKS = {True: ("held", "✓"), False: ("broken", "✗"), None: ("noted", "•")}
EXACT_NAMES = {"optimum": "Optimum", "upper_bound": "Upper bound (Lagrangian)"}


# ---------------------------------------------------------------------- the paper, figure by figure


def _overview(drawn: Sequence[Drawn]) -> Markup:
    """All claims in one table, with links."""
    if not drawn:
        return _tag("p", "Interrupted before anything was done: there is nothing to show.")
    rows = [
        [_link(f"#{each.name}", _number(each.name)), claim.text, _verdict(claim)]
        for each in drawn
        for claim in each.claims
    ]
    rows += [
        [_link(f"#{each.name}", _number(each.name)), "not judged: interrupted", ""]
        for each in drawn
        if each.interrupted
    ]
    counts = Counter(claim.verdict for each in drawn for claim in each.claims)
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return _join(
        _tag("h2", "All claims"),
        _tag("p", f"{counts.total()} claims: {words}." if counts else "No claim was judged."),
        _table("All claims", ["Figure", "Claim", "Verdict"], rows),
    )


def _section(folder: Path, drawn: Drawn) -> Markup:
    figure = drawn.figure
    title = f"{_number(drawn.name)}: {figure.title}"
    drawing = plots.save(plots.paper(drawn), folder, drawn.name, title)
    files = [*_tables(folder, drawn), f"{drawn.name}.png", f"{drawn.name}.svg", "claims.json"]
    done = [
        (variant.label, results)
        for variant, results in zip(figure.variants, drawn.results, strict=False)
    ]
    parts = [
        _tag("h2", title),
        _interrupted(drawn),
        _drawing(drawing, CAPTIONS[figure.x, figure.y]),
        _claims(drawn.claims, figure.beyond),
        _exact([variant.label for variant in figure.variants], drawn.values),
    ]
    if done:
        parts.append(_details("Means", _tag("p", MEANS), _means(done)))
    parts += [
        _details("Settings", *_figure_settings(drawn)),
        _files(files, f"Took {drawn.seconds:.1f} s. "),
    ]
    return Markup(f'<section id="{_text(drawn.name)}">\n{_join(*parts)}\n</section>')


def _interrupted(drawn: Drawn) -> Markup:
    if not drawn.interrupted:
        return Markup("")
    asked = drawn.figure.n_trials
    trials = sum(results.trials for results in drawn.results)
    return _tag(
        "p",
        f"Interrupted: {trials} of {asked} trials were done. Shown is what there is; the "
        "claims were not judged.",
        "note",
    )


def _claims(claims: Sequence[Claim], beyond: bool) -> Markup:
    if not claims:
        return Markup("")
    items = [
        _tag(
            "li",
            _join(
                _tag("p", Markup(f"{_verdict(claim)} {_tag('strong', claim.text)}")),
                _tag("p", f"Measured: {claim.measured}"),
            ),
        )
        for claim in claims
    ]
    title = "What is claimed" if beyond else "What the paper says"
    return _join(_tag("h3", title), _tag("ul", _join(*items), "claims"))


def _verdict(claim: Claim) -> Markup:
    kind, mark = MARKS[claim.held]
    return Markup(
        f'<span class="verdict {kind}"><span aria-hidden="true">{mark}</span> '
        f"{_text(claim.verdict)}</span>"
    )


def _exact(labels: Sequence[str], values: Sequence[Values]) -> Markup:
    """Exact values and their shares of the optimum, by variant."""
    if not values:
        return Markup("")
    rows: list[list[str]] = []
    for name in values[0]:
        row: list[str] = [EXACT_NAMES.get(name) or _policy(name)]
        for each in values:
            value, best = each[name], each["optimum"]
            row += ["not known" if value is None else f"{value:.6f}", _share(value, best)]
        rows.append(row)
    head = ["Known dynamics"]
    for text in labels[: len(values)]:
        head += [f"Long-run average{', ' if text else ''}{text}", "of the optimum"]
    reasons = {f"{name}: {why}." for each in values for name, why in each.reasons.items()}
    return _join(
        _tag("h3", "Exact values"),
        _table("Exact values", head, rows, numbers_from=1),
        *(_tag("p", reason) for reason in sorted(reasons)),
    )


def _share(value: float | None, best: float | None) -> str:
    return "" if value is None or not best else f"{100 * value / best:.3f} %"


def _figure_settings(drawn: Drawn) -> list[Markup]:
    variants = drawn.figure.variants
    arms = _arms([(variant.label, variant.study.arms) for variant in variants])
    if drawn.figure.x == "belief":
        return [_tag("p", f"Subsidy {drawn.figure.subsidy:g}."), arms]
    results = [*drawn.results, *[None] * len(variants)]
    return [
        _settings([(v.label, v.study, r) for v, r in zip(variants, results, strict=False)]),
        arms,
    ]


def _tables(folder: Path, drawn: Drawn) -> list[str]:
    """Write the curves as CSV files, variants below one another; returns the files' names."""
    import pandas as pd

    names = []
    if drawn.series:
        first, *_ = drawn.series.values()
        name = f"{drawn.name}-series.csv"
        curves = {key: curve for key, curve in drawn.series.items() if len(curve) == len(first)}
        pd.DataFrame(curves).to_csv(folder / name, index=False)
        names.append(name)
    for kind in ("slot", "episode") if drawn.results else ():
        rows = [
            {"variant": variant.label, **row}
            for variant, results in zip(drawn.figure.variants, drawn.results, strict=False)
            for row in getattr(results, f"{kind}_rows")()
        ]
        name = f"{drawn.name}-{kind}s.csv"
        pd.DataFrame(rows).to_csv(folder / name, index=False)
        names.append(name)
    return names


def _number(name: str) -> str:
    """fig09a is Fig. 9(a)."""
    found = re.fullmatch(r"fig0*(\d+)([a-z]?)", name)
    if found is None:
        return name.capitalize()
    number, letter = found.groups()
    return f"Fig. {number}" + (f"({letter})" if letter else "")


# -------------------------------------------------------------------------------- results as tables


def _what_was_run(results: Results) -> Markup:
    study = results.study
    said = _tag(
        "p",
        f"M = {study.agents} agents, N = {len(study.arms)} arms, K = {study.plays} plays in each "
        f"of {study.horizon} slots; {results.trials} trials.",
    )
    if not results.interrupted:
        return said
    note = (
        f"Interrupted: {results.trials} of {study.trials} trials were done, numbers are of those."
    )
    return _join(said, _tag("p", note, "note"))


def _means(done: Sequence[tuple[str, Results]]) -> Markup:
    """One row for each policy of each variant."""
    rows: list[list[str]] = []
    for text, results in done:
        for name, r in results.items():
            rows.append(
                [
                    *([text] if text else []),
                    _policy(name),
                    _plus_minus(r.mean, r.se),
                    _plus_minus(r.final, r.final_se),
                    f"{r.episodes:.1f}",
                    _plus_minus(r.behind, r.behind_se),
                ]
            )
    named = [*(["Variant"] if done[0][0] else []), "Policy"]
    head = [*named, "Mean", "Last tenth", "Episodes", "Behind whittle"]
    return _table("Means", head, rows, numbers_from=len(named))


def _policy(name: str) -> Markup:
    """The paper's name of a policy, and the one to type."""
    shown = plots.label(name)
    if shown == name:
        return _text(name)
    return Markup(f"{_text(shown)} <code>{_text(name)}</code>")


def _plus_minus(value: float, se: float) -> str:
    """With an unknown error (one trial), the value alone."""
    return f"{value:.5f}" if np.isnan(se) else f"{value:.5f} ± {se:.5f}"


def _settings(studies: Sequence[tuple[str, Study, Results | None]]) -> Markup:
    """One column for each variant, a row for each setting."""
    columns = [_setting_column(study, results) for _, study, results in studies]
    rows = [[key, *(column[key] for column in columns)] for key in columns[0]]
    head = ["Setting", *(text or "Value" for text, _, _ in studies)]
    return _table("Settings", head, rows)


def _setting_column(study: Study, results: Results | None) -> dict[str, str]:
    done = "" if results is None or not results.interrupted else f"{results.trials} of "
    options = [
        f"{name}: {key} = {json.dumps(value)}"
        for name, settings in study.options.items()
        for key, value in settings.items()
    ]
    weights = study.weights
    return {
        "Agents M": str(study.agents),
        "Arms N": str(len(study.arms)),
        "Plays in a slot K": str(study.plays),
        "Slots T": str(study.horizon),
        "Trials": f"{done}{study.trials}",
        "Seed": str(study.seed),
        "Realisations": study.realisations,
        "Schedule": study.schedule,
        "Policies": ", ".join(study.policy_names),
        "Options": "; ".join(options) or "none",
        "Weights": "1 each" if weights is None else ", ".join(f"{w:g}" for w in weights),
    }


def _arms(listed: Sequence[tuple[str, Arms]]) -> Markup:
    """The arms, once where the variants share them."""
    if all(_same(arms, listed[0][1]) for _, arms in listed):
        listed = [("", listed[0][1])]
    parts = []
    for text, arms in listed:
        title = f"Arms: {text}" if text else "Arms"
        head, rows = _channel_rows(arms) if arms.are_channels else _arm_rows(arms)
        parts += [_tag("h3", title), _table(title, head, rows, numbers_from=1)]
    return _join(*parts)


def _same(first: Arms, second: Arms) -> bool:
    keys = ("passive", "active", "reward_passive", "reward_active")
    return first.kinds == second.kinds and all(
        np.array_equal(getattr(first, key), getattr(second, key)) for key in keys
    )


def _channel_rows(arms: Arms) -> tuple[list[str], list[list[str]]]:
    columns = (arms.p01, arms.p11, arms.reward)
    beliefs = stationary_belief(arms)
    rows = [
        [str(arm + 1), *(f"{float(x[arm])!r}" for x in columns), f"{float(beliefs[arm]):.4f}"]
        for arm in range(len(arms))
    ]
    return ["Arm", "p01", "p11", "Reward", "Stationary belief"], rows


def _arm_rows(arms: Arms) -> tuple[list[str], list[list[str]]]:
    """One row for each state of each arm."""
    rows = []
    for number, arm in enumerate(arms, start=1):
        seen = "always" if arm.observed == "always" else "when played"
        for s in range(arm.states):
            moves = (", ".join(f"{p:g}" for p in matrix[s]) for matrix in (arm.passive, arm.active))
            pays = (f"{r[s]:g}" for r in (arm.reward_passive, arm.reward_active))
            rows.append([f"{number}, seen {seen}" if s == 0 else "", str(s), *moves, *pays])
    head = ["Arm", "State", "Next if left alone", "Next if played", "Pays if left alone", "Pays"]
    return head, rows


# ------------------------------------------------------------------------------------------- markup


def _text(text: str) -> Markup:
    """Escaped, unless it is markup."""
    return text if isinstance(text, Markup) else Markup(escape(text))


def _tag(name: str, text: str, kind: str = "") -> Markup:
    shown = f' class="{kind}"' if kind else ""
    return Markup(f"<{name}{shown}>{_text(text)}</{name}>")


def _join(*parts: Markup) -> Markup:
    return Markup("\n".join(part for part in parts if part))


def _link(to: str, text: str) -> Markup:
    return Markup(f'<a href="{_text(to)}">{_text(text)}</a>')


def _details(summary: str, *parts: Markup) -> Markup:
    return Markup(f"<details>\n{_tag('summary', summary)}\n{_join(*parts)}\n</details>")


def _files(names: Iterable[str], before: str = "") -> Markup:
    links = ", ".join(_link(name, name) for name in names)
    return _tag("p", Markup(f"{_text(before)}Files: {links}"), "files")


def _drawing(svg: str, caption: str) -> Markup:
    """A drawing on a white card; one with two columns scrolls on a narrow screen."""
    found = re.search(r'viewBox="0 0 ([0-9.]+) ', svg)
    kind = "wide" if found is not None and float(found[1]) > WIDE else "narrow"
    return Markup(
        f'<figure>\n<div class="drawing {kind}">\n{svg}\n</div>\n'
        f"{_tag('figcaption', caption)}\n</figure>"
    )


def _table(
    about: str, head: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int = 99
) -> Markup:
    """A table that scrolls in its place; columns from numbers_from on hold numbers."""

    def line(tags: Iterable[str], cells: Iterable[str]) -> str:
        return "<tr>" + "".join(map(cell, tags, cells, range(len(head)))) + "</tr>"

    def cell(tag: str, text: str, column: int) -> str:
        kind = ' class="number"' if column >= numbers_from else ""
        return f"<{tag}{kind}>{_text(text)}</{tag.split()[0]}>"

    top = line(['th scope="col"'] * len(head), head)
    body = "\n".join(line(['th scope="row"', *["td"] * (len(head) - 1)], row) for row in rows)
    return Markup(
        f'<div class="scroll" role="region" tabindex="0" aria-label="{_text(about)}">\n<table>\n'
        f"<thead>{top}</thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def _write(folder: Path, title: str, body: Iterable[Markup]) -> Path:
    path = folder / "report.html"
    page = PAGE.format(
        title=_text(title), style=STYLE, body=_join(*body), version=_text(__version__)
    )
    path.write_text(page, encoding="utf-8")
    return path


PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
<footer><p>rmab {version}</p></footer>
</body>
</html>
"""

STYLE = """\
:root {
  --ink: #1c1c1e; --soft: #5c5f66; --paper: #fff; --line: #dcdee3; --shade: #f4f5f7;
  --link: #0b57a4; --held: #11652f; --broken: #a3230f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e9eaec; --soft: #a5a9b1; --paper: #16181c; --line: #363a42; --shade: #20242a;
    --link: #8ec1ff; --held: #7fd49a; --broken: #ff9d8a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  -webkit-text-size-adjust: 100%;
}
main, footer { max-width: 62rem; margin: 0 auto; padding: 0 1.1rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 2.2rem 0 0.8rem; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 2.6rem 0 0.8rem; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 0.5rem; }
p { max-width: 44rem; margin: 0.7rem 0; }
section { border-top: 1px solid var(--line); margin-top: 2.6rem; }
section h2 { margin-top: 1.6rem; }
a { color: var(--link); }
code { font-size: 0.85em; color: var(--soft); }
figure { margin: 1.2rem 0; }
figcaption { color: var(--soft); font-size: 0.9rem; margin-top: 0.4rem; max-width: 44rem; }
.drawing {
  background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: 0.6rem;
  overflow-x: auto;
}
.drawing svg { display: block; width: 100%; height: auto; margin: 0 auto; }
.drawing.narrow svg { max-width: 40rem; }
.drawing.wide svg { min-width: 38rem; }
.scroll { overflow-x: auto; margin: 0.8rem 0 1.2rem; }
table { border-collapse: collapse; font-size: 0.92rem; line-height: 1.4; }
th, td {
  text-align: left; vertical-align: top; padding: 0.35rem 0.9rem 0.35rem 0;
  border-bottom: 1px solid var(--line);
}
th { font-weight: 600; }
tbody th { font-weight: 400; }
thead th { border-bottom: 2px solid var(--line); }
tbody th a { white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
.claims { list-style: none; padding: 0; }
.claims li { border-left: 4px solid var(--line); padding-left: 0.9rem; margin: 0.9rem 0; }
.claims p { margin: 0.15rem 0; }
.claims .verdict {
  border: 1px solid; border-radius: 4px; padding: 0 0.4rem; margin-right: 0.3rem;
  font-size: 0.85rem;
}
.verdict { white-space: nowrap; font-weight: 600; }
.held { color: var(--held); }
.broken { color: var(--broken); }
.note { border-left: 4px solid var(--broken); background: var(--shade); padding: 0.6rem 0.9rem; }
details { margin: 0.8rem 0; }
summary { cursor: pointer; color: var(--link); }
.files, footer { color: var(--soft); font-size: 0.9rem; }
footer { margin-top: 3rem; padding-bottom: 2rem; }
"""
