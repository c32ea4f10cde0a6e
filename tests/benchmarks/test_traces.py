"""The tables of what policies earn on traces."""

import numpy as np
import pytest
from benchmarks.traces import replaced_tables, table

import rmab


def test_tables_stand_where_the_page_has_marks():
    page = "a\n<!-- table x -->\nold\n<!-- end -->\nb\n<!-- table y -->\n<!-- end -->\n"
    once = replaced_tables(page, {"x": "new", "y": "other"})
    assert once == (
        "a\n<!-- table x -->\nnew\n<!-- end -->\nb\n<!-- table y -->\nother\n<!-- end -->\n"
    )
    assert replaced_tables(once, {"x": "new"}) == once
    with pytest.raises(ValueError, match="table z"):
        replaced_tables(page, {"z": ""})


def test_a_table_has_means_and_agent_slots():
    state = np.zeros((2, 60, 3), np.int8)
    state[:, :, 1] = 1
    found = rmab.backtest(rmab.Trace(state, np.zeros(60, int)), ["stay", "genie"])
    head, _, row = table({"made": found}, ["stay", "genie"], over_stay=True).splitlines()
    assert head == "| trace | agent-slots | `stay` | `genie` |"
    assert row.startswith("| made | 120 | .9833 (+.0000 to +.0000) | 1.0000 (+.0000 to +.")
