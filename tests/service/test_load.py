"""The load generator at work, in small; the numbers themselves are `make load`'s business."""

import asyncio
import json
from dataclasses import asdict

import pytest
import uvloop
from benchmarks.load import Size, measure, table
from benchmarks.traffic import server_command

SMALL = Size(seconds=0.5, connections=4, crowd=80, offered=4000, pollers=20, policy="feducb-myopic")


@pytest.mark.slow  # of a benchmark
def test_all_phases_run_and_every_waiting_agent_gets_the_next_round(tmp_path):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(measure(SMALL, tmp_path, server_command()))
    assert result.closed.uploads > 0
    assert result.overload.accepted > 0
    assert result.overload.other == 0
    assert result.overload.sent == result.overload.accepted + result.overload.refused
    assert result.polls.served == result.polls.waiting == 20
    assert result.polls.uploads_meanwhile > 0
    assert json.loads(json.dumps(asdict(result)))["polls"]["served"] == 20
    assert "durable uploads a second" in table(result, SMALL)
