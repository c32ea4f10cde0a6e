"""Tables of a page: means, exact values, settings and arms."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rmab.model.arms import Arms
from rmab.model.information import stationary_belief
from rmab.policies.options import GOSSIP_OPTIONS
from rmab.privacy.accounting import Budget
from rmab.report.html import Markup, escaped, join, table, tag
from rmab.report.style import label
from rmab.studies.arm_tables import same_arms
from rmab.studies.provenance import Provenance
from rmab.studies.results import Results
from rmab.studies.run import Values
from rmab.studies.study import KEYS, Study
from rmab.studies.sweep import Sweep, key_label, value_text

if TYPE_CHECKING:
    from rmab.experiments.powers import PowerLaw

__all__ = [
    "arms_table",
    "exact_table",
    "means_table",
    "points_table",
    "powers_table",
    "settings_table",
    "what_was_run",
    "where_it_was_run",
]

_MAX_SLOPES_WITH_ERRORS = 8
_EXACT_NAMES = {"optimum": "Optimum", "upper_bound": "Upper bound (Lagrangian)"}


def exact_table(labels: Sequence[str], values: Sequence[Values]) -> Markup:
    """Table of exact values and their shares of the optimum, by variant."""
    if not values:
        return Markup("")
    rows: list[list[str]] = []
    for name in values[0]:
        row: list[str] = [_EXACT_NAMES.get(name) or policy_cell(name)]
        for each in values:
            value, best = each[name], each["optimum"]
            row += ["not known" if value is None else f"{value:.6f}", _share(value, best)]
        rows.append(row)
    head = ["Known dynamics"]
    for text in labels[: len(values)]:
        head += [f"Long-run average{', ' if text else ''}{text}", "of the optimum"]
    reasons = {f"{name}: {why}." for each in values for name, why in each.reasons.items()}
    return join(
        tag("h3", "Exact values"),
        table("Exact values", head, rows, numbers_from=1),
        *(tag("p", reason) for reason in sorted(reasons)),
    )


def _share(value: float | None, best: float | None) -> str:
    return "" if value is None or not best else f"{100 * value / best:.3f} %"


def what_was_run(results: Results) -> Markup:
    """Write M, N, K, T and the trials in a sentence, and the provenance in another."""
    study = results.study
    text = (
        f"M = {_several(study.agents, 'agent')}, N = {_several(len(study.arms), 'arm')}, "
        f"K = {_several(study.plays, 'play')} in each of {_several(study.horizon, 'slot')}; "
        f"{_several(results.trials, 'trial')}."
    )
    if results.provenance is not None:
        text += f" {where_it_was_run(results.provenance)}"
    said = tag("p", text)
    if not results.interrupted:
        return said
    note = (
        f"Interrupted: {results.trials} of {study.trials} trials were done; numbers are of those."
    )
    return join(said, tag("p", note, "note"))


def _several(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def where_it_was_run(made: Provenance) -> str:
    """Write device, time, duration and versions."""
    versions = ", ".join(f"{name} {made.versions[name]}" for name in ("rmab", "jax"))
    return f"Made on {made.described}, {made.begun}, in {made.seconds:.1f} s, with {versions}."


def means_table(runs: Sequence[tuple[str, Results]]) -> Markup:
    """Table of means, a row for each policy of each variant."""
    rows: list[list[str]] = []
    for text, results in runs:
        for name, r in results.items():
            rows.append(
                [
                    *([text] if text else []),
                    policy_cell(name),
                    _plus_minus(r.mean, r.se),
                    _plus_minus(r.final, r.final_se),
                    f"{r.episodes:.1f}",
                    _plus_minus(r.behind, r.behind_se),
                ]
            )
    named = [*(["Variant"] if runs[0][0] else []), "Policy"]
    head = [*named, "Mean", "Last tenth", "Episodes", "Shortfall to whittle"]
    return table("Means", head, rows, numbers_from=len(named))


def powers_table(fits: Mapping[str, PowerLaw]) -> Markup:
    """Table of fitted power laws, with the slopes from point to point."""
    rows = []
    for curve, found in fits.items():
        chi2 = "" if np.isnan(found.chi2_per_degree) else f"{found.chi2_per_degree:.1f}"
        slopes = [_plus_minus(step.slope, step.se, 2) for step in found.steps]
        if len(slopes) > _MAX_SLOPES_WITH_ERRORS:
            slopes = [f"{step.slope:.2f}" for step in found.steps]
        rows.append(
            [
                curve,
                _plus_minus(found.slope, found.slope_se, 3),
                chi2,
                "yes" if found.fits else "no",
                ", ".join(slopes),
            ]
        )
    head = ["Curve", "Power", "Chi-squared per degree", "Fits", "From point to point"]
    return table("Powers", head, rows)


def policy_cell(name: str) -> Markup:
    """Label of a policy, with the name to type."""
    shown = label(name)
    if shown == name:
        return escaped(name)
    return Markup(f"{escaped(shown)} <code>{escaped(name)}</code>")


def _plus_minus(value: float, se: float, digits: int = 5) -> str:
    """Write a number with its error, if the error is known."""
    return f"{value:.{digits}f}" + ("" if np.isnan(se) else f" ± {se:.{digits}f}")


def points_table(sweep: Sweep) -> Markup:
    """Table of the settings of each point."""
    rows = [
        [str(number), point.label, *map(value_text, point.settings.values())]
        for number, point in enumerate(sweep.points, start=1)
    ]
    return table("Points", ["Point", "Variant", *map(key_label, sweep.values)], rows)


def settings_table(studies: Sequence[tuple[str, Study, Results | None]]) -> Markup:
    """Table of the settings that all variants share, then of the others by variant."""
    columns = [_setting_column(study, results) for _, study, results in studies]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    columns = [{key: column.get(key, "–") for key in keys} for column in columns]
    first = columns[0]
    shared = [key for key in first if all(column[key] == first[key] for column in columns)]
    own = [key for key in first if key not in shared]
    parts = [table("Settings", ["Setting", "Value"], [[key, first[key]] for key in shared])]
    if own:
        rows = [
            [text, *(column[key] for key in own)]
            for (text, _, _), column in zip(studies, columns, strict=True)
        ]
        parts.append(table("Settings by variant", ["Variant", *own], rows))
    return join(*parts)


def _setting_column(study: Study, results: Results | None) -> dict[str, str]:
    """Settings of a study by label."""
    column = {"Arms N": str(len(study.arms))}
    for name, key in KEYS.items():
        unread = (
            not study.gossips if name in GOSSIP_OPTIONS else name == "agent" and not study.agent
        )
        if unread:
            continue
        column[key.label] = _SETTINGS.get(name, str)(getattr(study, name))
    if results is not None and results.interrupted:
        column[KEYS["trials"].label] = f"{results.trials} of {study.trials}"
    return column


def _policies(policies: Sequence[Any]) -> str:
    return ", ".join(each if isinstance(each, str) else each.name for each in policies)


def _options(options: Mapping[str, Mapping[str, Any]]) -> str:
    listed = [
        f"{name}: {key} = {json.dumps(value)}"
        for name, settings in options.items()
        for key, value in settings.items()
    ]
    return "; ".join(listed) or "none"


def _weights(weights: Sequence[float] | None) -> str:
    return "1 each" if weights is None else ", ".join(f"{w:g}" for w in weights)


def _agents(tables: Sequence[Mapping[str, Any]]) -> str:
    listed = [
        f"agents {', '.join(map(str, table['agents']))}, arm {arm['number']}: "
        + ", ".join(f"{key} = {json.dumps(arm[key])}" for key in arm if key != "number")
        for table in tables
        for arm in table["arm"]
    ]
    return "; ".join(listed)


def _privacy(privacy: Mapping[str, float] | None) -> str:
    """Write the privacy budget of a slot, and the groups."""
    given = dict(privacy or {})
    groups = given.pop("groups", 1)
    text = "sums without noise"
    if given:
        budget = Budget(**given)
        text = f"ε = {budget.epsilon:g}, δ = {budget.delta:g} for each slot"
    return text if groups == 1 else f"{text}, {groups} groups"


# Writers of keys that are more than one number or word.
_SETTINGS: Mapping[str, Callable[[Any], str]] = {
    "policies": _policies,
    "options": _options,
    "weights": _weights,
    "agent": _agents,
    "privacy": _privacy,
}


def arms_table(listed: Sequence[tuple[str, Arms]]) -> Markup:
    """Tables of arms, one if the variants share them or have copies of them."""
    firsts = [_without_copies(arms) for _, arms in listed]
    shared = all(same_arms(first, firsts[0]) for first in firsts)
    parts = []
    for place, ((text, _), first) in enumerate(zip(listed, firsts, strict=True)):
        if shared and place > 0:
            break
        same = listed if shared else [listed[place]]
        title = f"Arms: {text}" if text and not shared else "Arms"
        title += _copies({len(arms) // len(first) for _, arms in same})
        head, rows = _channel_rows(first) if first.are_channels else _arm_rows(first)
        parts += [tag("h3", title), table(title, head, rows, numbers_from=1)]
    return join(*parts)


def _without_copies(arms: Arms) -> Arms:
    """First arms, of which all others are copies in the same order."""
    N = len(arms)
    sizes = (size for size in range(1, N) if N % size == 0)
    repeats = (
        arms[:size] for size in sizes if same_arms(arms, Arms(arms[:size].each * (N // size)))
    )
    return next(repeats, arms)


def _copies(numbers: set[int]) -> str:
    if numbers == {1}:
        return ""
    few, many = min(numbers), max(numbers)
    return f", {many if few == many else f'{few} to {many}'} copies of each"


def _channel_rows(arms: Arms) -> tuple[list[str], list[list[str]]]:
    columns = (arms.p01, arms.p11, arms.reward)
    beliefs = stationary_belief(arms)
    rows = [
        [str(arm + 1), *(f"{float(x[arm])!r}" for x in columns), f"{float(beliefs[arm]):.4f}"]
        for arm in range(len(arms))
    ]
    return ["Arm", "p01", "p11", "Reward", "Stationary belief"], rows


def _arm_rows(arms: Arms) -> tuple[list[str], list[list[str]]]:
    """Rows by arm and state."""
    rows = []
    for number, arm in enumerate(arms, start=1):
        observed = "fully observed" if arm.observed == "always" else "observed when played"
        for s in range(arm.states):
            chances = (", ".join(f"{p:g}" for p in P[s]) for P in (arm.passive, arm.active))
            rewards = (f"{r[s]:g}" for r in (arm.reward_passive, arm.reward_active))
            rows.append([f"{number}, {observed}" if s == 0 else "", str(s), *chances, *rewards])
    head = ["Arm", "State", "Passive transitions", "Active transitions"]
    return [*head, "Passive reward", "Active reward"], rows
