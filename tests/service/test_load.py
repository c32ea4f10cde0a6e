"""The load generator at work, in small; the numbers themselves are `make load`'s business."""

import asyncio
import json
import re
from contextlib import closing, suppress
from dataclasses import asdict

import pytest
import uvloop
from benchmarks.load import Load, Size, measure, table
from benchmarks.traffic import server_command

from tests.service.support.serving import spectrum

SMALL = Size(seconds=0.5, connections=4, crowd=80, offered=4000, pollers=20, policy="feducb-myopic")


class Unsteady:
    """A server that cannot take every third upload, and says when to come again.

    The answers of every fifth get lost on the way: it took them, and 503 is what comes.
    """

    def __init__(self):
        self.url = ""
        self.refused = 0
        self.sequences = {}  # by incarnation

    def processor_seconds(self):
        return 0.0

    async def serve(self, reader, writer):
        with suppress(OSError, EOFError, asyncio.CancelledError), closing(writer):
            while head := await reader.readuntil(b"\r\n\r\n"):
                (size,) = re.findall(rb"content-length: (\d+)", head.lower())
                table = json.loads(await reader.readexactly(int(size)))
                writer.write(self.answer(table["incarnation"], table["sequence"]))

    def answer(self, incarnation, sequence):
        known = self.sequences.setdefault(incarnation, [])
        first = sequence not in known
        if first and (self.refused + sum(map(len, self.sequences.values()))) % 3 == 2:
            self.refused += 1
            if self.refused % 5 == 0:
                known.append(sequence)
            return (
                b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0\r\nContent-Length: 2\r\n\r\n{}"
            )
        known.append(sequence)
        status = b"201 Created" if first else b"200 OK"
        return b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\n{}" % status


async def load_of(pretended, connections, seconds):
    server = await asyncio.start_server(pretended.serve, "127.0.0.1", 0)
    pretended.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    load = Load(pretended, spectrum(policy="feducb-myopic"), ["token"] * connections)
    try:
        return await load.closed(load.senders(0, connections), seconds)
    finally:
        server.close()


def test_uploads_that_got_503_are_sent_again_and_counted():
    pretended = Unsteady()
    closed = asyncio.run(load_of(pretended, 4, 0.2))
    assert closed.uploads > 20
    assert closed.tried_again == pretended.refused > 5
    for known in pretended.sequences.values():  # the same upload again, and none left out
        assert sorted(set(known)) == list(range(1, max(known) + 1))
    sent = sum(len(set(known)) for known in pretended.sequences.values())
    assert closed.uploads == sent


def test_any_other_refusal_ends_it():
    class Refusing(Unsteady):
        def answer(self, incarnation, sequence):
            return b"HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\n{}"

    with pytest.raises(RuntimeError, match=r"refused: Answer.*409"):
        asyncio.run(load_of(Refusing(), 1, 0.1))


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
