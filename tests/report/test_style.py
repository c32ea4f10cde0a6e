"""How lines are drawn: every policy in its own way, a user's by its name."""

from rmab.policies.registry import KNOWN, LEARNERS
from rmab.report.style import label, line_styles


def test_every_policy_has_a_style_of_its_own(small):
    names = [*LEARNERS, *KNOWN]
    each = list(line_styles(names).values())
    assert len({style.label for style in each}) == len(names)
    assert not {style.label for style in each} & set(names)  # all have more than a name
    assert len({style.colour for style in each}) == len(names)
    assert len({(style.dash, style.marker) for style in each}) == len(names)
    assert all(style.marker for style in each[: len(LEARNERS)])
    assert label("fedtswi") == "FedTSWI"
    assert label(small.odd) == small.odd


def test_lines_without_a_style_of_their_own_differ(small):
    styles = line_styles(["mine", "whittle", small.odd])
    assert [style.label for style in styles.values()] == ["mine", "WI policy", small.odd]
    assert len({(style.colour, style.marker) for style in styles.values()}) == 3
