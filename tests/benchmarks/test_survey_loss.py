"""What a survey costs by the engine: the cases, and the table."""

import pytest
from benchmarks.survey_loss import CASES, measure, study, table

from rmab.studies.run import setting_of_study


def test_every_case_is_a_study():
    for changes in CASES.values():
        made = study(16, 2).__class__(**{**vars(study(16, 2)), **changes})
        assert setting_of_study(made).survey == changes.get("privacy", {}).get("survey", 0)


def test_the_table_has_a_column_for_each_number_of_agents():
    rows = [{"case": case, "16": [0.01, 0.001], "64": [0.02, 0.002]} for case in CASES]
    lines = table({"trials": {"16": 4, "64": 4}, "rows": rows}).splitlines()
    assert lines[0] == "| counted for others | M = 16 | M = 64 |"
    assert lines[2] == "| each alone | 0.0100 ± 0.0010 | 0.0200 ± 0.0020 |"
    assert len(lines) == 2 + len(CASES)


@pytest.mark.slow  # six programs
def test_a_survey_of_all_slots_costs_most():
    rows = {row["case"]: row["4"][0] for row in measure({4: 16}, horizon=60)["rows"]}
    assert rows["`survey = 32`"] > rows["`survey = 8`"] > 0
