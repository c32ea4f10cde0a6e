"""Exchange between an agent and its server, in the background.

One thread runs an event loop and does all slow work: it asks for rounds, sends uploads and writes
to the agent's file. The agent's own thread hands things over (`offer`, `want_round`) and reads the
results (`message`, `has_all`, `refuses`), and never waits unless it asks to (`wait`).

The thread does the first of these that is due, over and over:

    keep     offers go into the file, before anything else is tried
    meet     the first contact: the round that is open now, whatever its number, by which the server
             takes this agent for the owner of the file
    send     uploads of earlier incarnations, oldest first, then this one's newest; of an agent with
             a mask key only masked ones, whatever the server says, and before the newest those at
             marks
    fetch    where the agent's episode is over: wait at the server for the next round

Answers to an upload:

    201, 200     the server has it. An answer that does not name the upload's sequence number is
                 some other machine's and acknowledges nothing.
    410          the round is closed: the same counts go out under the round that is open, with the
                 next sequence number and length 0, since they do not report that round's episode
    409          the server has something else under this incarnation. It is not known which
                 counts it has, so the incarnation is given up, and the agent begins a new one.
    429          with `slots`: that number more would be taken now, and a part of the upload of at
                 most that size goes out at once; else as below
    413, 422     the server will never take it: an error is logged, and the agent goes on
    401          logged once a minute; tried again
    else         no answer, one that is not understood, 503, ...: tried again

Trying again waits: 0.2 s at first, twice as long each time and 60 s at most, less up to a half by
chance so that agents spread; or as long as the server says (Retry-After). An upload that waits is
replaced by a newer one, as counts are cumulative.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from rmab.errors import ProtocolError
from rmab.protocol.messages import RoundMessage, parse_round
from rmab.service.agent.client import Answer, Client, NotReachedError
from rmab.service.agent.limits import AgentLimits
from rmab.service.agent.outbox import Offer, Outbox, Outgoing, RateLimitedLog, Resumed, Writing
from rmab.service.agent.state_file import AgentFile

if TYPE_CHECKING:  # loaded with the first laws
    from rmab.privacy.prior_summaries import SummariesMessage

__all__ = ["Exchange"]

log = logging.getLogger("rmab.agent")


class _AgainError(Exception):
    """It did not work out and is to be tried again, after `pause` seconds where that is known."""

    def __init__(self, kind: str, reason: str, *, pause: float | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.pause = pause


class Exchange:
    """Background side of one agent. Waiting threads are notified of every change."""

    def __init__(
        self,
        client: Client,
        file: AgentFile,
        incarnation: str,
        limits: AgentLimits,
        *,
        message: RoundMessage | None,
        earlier: Iterable[Outgoing],
        writing: Writing | None = None,
        before: Resumed | None = None,
    ) -> None:
        self.message = message  # newest round, None before the first
        self.laws: SummariesMessage | None = None  # to draw by; None: by its plan
        self.slot_seconds: float | None = None  # shortest slot that the server accepts, if named
        self.met = False  # whether the server took this agent for the owner of the file
        self.refusal: str | None = None  # why the server refused the credential before that
        self.foreign_file: str | None = None  # why the exchange ended: the file is another agent's
        self.position = 0  # at which the next incarnation of an agent with a mask key begins
        self.connected = False  # whether the last attempt worked
        self.trouble = "no attempt was made yet"
        self._changed = threading.Condition()
        self._client = client
        self._file = file
        self._limits = limits
        self._limited_log = RateLimitedLog(limits.quiet_seconds)
        self._writing = writing or Writing()
        self._outbox = Outbox(file, incarnation, earlier, self._limited_log, self._writing, before)
        self._wants_round = message is None
        self._after = 0
        self._retry_now = False
        self._failures = 0
        self._closed_rounds = 0  # told of in a row
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._given_up: set[asyncio.Future[None]] = set()  # requests that end yet

    # ----------------------------------------------------------------- from the agent's own thread

    def start(self) -> None:
        """Begin the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="rmab-agent", daemon=True)
        self._thread.start()

    def offer(self, offer: Offer) -> None:
        """Hand over counts, to be kept and perhaps sent."""
        self._outbox.offer(offer)
        self._tell(self._wake)

    def want_round(self) -> None:
        """Ask for the next round."""
        self._wants_round = True
        self._tell(self._wake)

    def retry_now(self) -> None:
        """Try now, though a pause may not be over."""
        self._retry_now = True
        self._tell(self._wake)

    def renew(self, incarnation: str, since: int = 0) -> None:
        """Counts are of a new incarnation from now on; since: the position at which it begins."""
        self._outbox.renew(incarnation, since)

    @property
    def uploads(self) -> int:
        """How many uploads were acknowledged."""
        return self._outbox.uploads

    def has_all(self, slots: int) -> bool:
        """Whether the server has all, that many slots of this incarnation included."""
        return self._outbox.has_all(slots)

    def refuses(self, incarnation: str) -> bool:
        """Whether the server has something else under this incarnation."""
        return self._outbox.conflict == incarnation

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until it holds; False where that takes longer."""
        with self._changed:
            return self._changed.wait_for(condition, seconds)

    def stop(self) -> None:
        """Keep offers, tell the server that the agent leaves, end the thread."""
        self._tell(self._stop)
        self._thread.join(self._limits.stop_seconds)

    def _tell(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(event.set)

    # --------------------------------------------------------------------------- in the background

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        finally:
            self._loop.close()

    async def _live(self) -> None:
        async with self._client.http:
            work = asyncio.ensure_future(self._work())
            await self._stop.wait()
            work.cancel()
            await asyncio.wait({work})
            self._outbox.keep_offers(self.message)
            await self._leave()
            if self._given_up:  # whose connections may not be closed yet
                await asyncio.wait(self._given_up)

    async def _work(self) -> None:
        while not self._stop.is_set() and self.foreign_file is None:
            try:
                await self._turn()
            except Exception:  # a fault of ours must not end the exchange
                if self._limited_log.is_due("fault"):
                    log.exception("the exchange with the server failed")
                self._failed("a fault in the agent")
                await asyncio.sleep(self._next_pause())

    async def _turn(self) -> None:
        """Do the next thing; where it is to be tried again, wait first."""
        try:
            answered = await self._step()
        except NotReachedError as error:
            again = _AgainError("away", str(error))
        except _AgainError as error:
            again = error
        else:
            if answered:
                self._worked()
            return
        if self.foreign_file is not None:
            self._failed(self.foreign_file)
            return
        if self._limited_log.is_due(again.kind):
            log.warning("%s", again)
        self._failed(str(again))
        await self._pause(again.pause)

    async def _step(self) -> bool:
        """Do the next thing; whether the server answered."""
        self._outbox.keep_offers(self.message)
        if not self.met:
            await self._fetch(0.0)
            return True
        outgoing = self._outbox.next()
        if outgoing is not None:
            await self._send(outgoing)
            return True
        if self._wants_round:
            return await self._fetch_unless_woken()
        await self._woken(None)
        return False

    async def _woken(self, seconds: float | None) -> bool:
        """Wait until the agent's thread stirs; False where that takes longer."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    async def _fetch_unless_woken(self) -> bool:
        """Wait at the server for the next round; False where there is something to send first."""
        fetch = asyncio.ensure_future(self._fetch(self._limits.round_wait))
        woken = asyncio.ensure_future(self._wake.wait())
        try:
            while not fetch.done():
                await asyncio.wait({fetch, woken}, return_when=asyncio.FIRST_COMPLETED)
                if woken.done():
                    self._wake.clear()
                    woken = asyncio.ensure_future(self._wake.wait())
                self._outbox.keep_offers(self.message)
                if self._outbox.has_current and not fetch.done():
                    return False
            await fetch
            return True
        finally:
            self._given_up.add(fetch)
            fetch.cancel()
            woken.cancel()
            await asyncio.wait({fetch, woken})
            self._given_up.discard(fetch)

    async def _pause(self, asked: float | None) -> None:
        """Wait before the next attempt; offers that come meanwhile are kept at once."""
        if asked is None:
            seconds = self._next_pause()
        else:
            seconds = min(asked, self._limits.longest_asked) * _spread(1.5)
        end = self._loop.time() + seconds
        while (rest := end - self._loop.time()) > 0:
            if not await self._woken(rest):
                return
            self._outbox.keep_offers(self.message)
            if self._retry_now and asked is None:
                self._retry_now = False
                return

    def _next_pause(self) -> float:
        """Seconds, by how often it failed in a row."""
        pause = self._limits.first_pause * 2.0 ** min(self._failures - 1, 30)
        return min(self._limits.longest_pause, pause) * _spread(0.5)

    def _failed(self, reason: str) -> None:
        self._failures += 1
        self.connected = False
        self.trouble = reason
        self._tell_of_change()

    def _worked(self) -> None:
        if self._failures:
            log.info("the server is reached again")
        self._failures = 0
        self._retry_now = False
        self.connected = True

    def _tell_of_change(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # ------------------------------------------------------------------------------------ fetching

    async def _fetch(self, wait: float) -> None:
        """Ask for a round above `_after`, and take it."""
        started = self._loop.time()
        query = {"after": self._after, "wait": f"{wait:g}"}
        answer = await self._client.ask("GET", "/v1/round", params=query, longer=wait)
        if answer.status == 204:
            if not self.met:
                raise _AgainError("nonsense", "the server has no round for this agent")
            await asyncio.sleep(
                max(0.0, started + self._limits.between_requests - self._loop.time())
            )
            return
        if answer.status != 200:
            raise self._refused(answer)
        try:
            message = parse_round(answer.body)
        except ProtocolError as error:
            raise _AgainError(
                "nonsense", f"the server's round is not understood: {error}"
            ) from None
        if message.round <= self._after:
            raise _AgainError(
                "nonsense", f"the server gave round {message.round}, which is not new"
            )
        if self._writing.masks and message.visit_factor is not None:
            raise _AgainError(
                "nonsense", "the server's episodes end by visits, which would tell about them"
            )
        self._check_same(message)
        laws = await self._laws_of(message) if answer.own_draws else None
        self._take(message, answer, laws)

    async def _laws_of(self, message: RoundMessage) -> SummariesMessage | None:
        """Return the summaries that the agent may draw by in a round; None where there are none: it
        then plays by the round's plan."""
        from rmab.privacy.prior_summaries import parse_summaries

        try:
            answer = await self._client.ask("GET", "/v1/laws")
            if answer.status != 200:
                raise NotReachedError(answer.detail)
            laws = parse_summaries(answer.body, message.shape)
        except (NotReachedError, ProtocolError) as error:
            if self._limited_log.is_due("laws"):
                log.warning("no laws to draw by, so the server's plan is played: %s", error)
            return None
        same = (laws.federation, laws.round) == (message.federation, message.round)
        return laws if same else None

    def _check_same(self, message: RoundMessage) -> None:
        """Refuse another federation's round, or one for another agent: counts in the file are not
        theirs, and some of them may have reached the one they are of."""
        known = self.message
        if known is None:
            return
        theirs, ours = (message.federation, message.agent), (known.federation, known.agent)
        if theirs != ours:
            differs = f"this credential is of agent {message.agent} in {message.federation}"
        elif message.shape != known.shape:
            differs = "the server's arms are others"
        else:
            return
        self.foreign_file = (
            f"{self._file.path} is of agent {known.agent} in federation {known.federation}, but "
            f"{differs}: start this agent with a file of its own"
        )
        raise _AgainError("foreign file", self.foreign_file)

    def _take(self, message: RoundMessage, answer: Answer, laws: SummariesMessage | None) -> None:
        with self._limited_log.tolerating_storage_errors():
            self._file.keep_message(answer.body)
        self._wants_round = False
        self._after = message.round
        self.laws = laws  # before the message, with which the agent takes it up
        self.slot_seconds = answer.slot_seconds
        self.message = message
        self.met = True
        self._tell_of_change()

    # ------------------------------------------------------------------------------------- sending

    async def _send(self, outgoing: Outgoing) -> None:
        """Send an upload, and act on the answer."""
        answer = await self._client.ask(
            "POST",
            outgoing.path,
            content=outgoing.body,
            headers={"content-type": "application/json"},
        )
        self._outbox.keep_offers(self.message)  # a newer one may have come meanwhile
        try:
            self._act_on(answer, outgoing)
        except _AgainError:
            self._outbox.failed(outgoing)
            raise

    def _act_on(self, answer: Answer, outgoing: Outgoing) -> None:
        if answer.status in (200, 201):
            if answer.number("sequence") != outgoing.upload.sequence:
                raise _AgainError("nonsense", "what answers the upload is not this server")
            self._closed_rounds = 0
            self._outbox.acknowledge(outgoing)
            if self.message is not None:
                self._outbox.send_rest(self.message)
            self._tell_of_change()
        elif answer.status == 410:
            self._follow_round(outgoing, answer.number("round"))
        elif answer.status == 409:
            self.position = max(0, answer.number("position") or 0)
            self._outbox.give_up(outgoing, answer.detail)
            self._tell_of_change()
        elif answer.status == 429 and self._sends_part(answer, outgoing):
            pass  # at the next turn
        elif answer.status in (413, 422):
            self._outbox.quarantine(outgoing, answer.detail)
        else:
            raise self._refused(answer)

    def _sends_part(self, answer: Answer, outgoing: Outgoing) -> bool:
        """Whether the server takes a part of an upload whose slots are too many for it now."""
        slots = answer.number("slots")
        if slots is None or self.message is None:
            return False
        return self._outbox.send_part(outgoing, slots, self.message)

    def _follow_round(self, outgoing: Outgoing, number: int | None) -> None:
        """The upload's round is closed, and another is open."""
        closed = outgoing.upload.round
        if number is None or number < 1 or number == closed:
            raise _AgainError("nonsense", f"the server says round {closed} is not open")
        assert self.message is not None
        if number != self.message.round:
            self._after = number - 1  # it may be a lower one: of a server that was set back
            self._wants_round = True
        self._outbox.restamp(outgoing, number, self.message)
        self._closed_rounds += 1
        if self._closed_rounds > self._limits.closed_rounds:
            raise _AgainError("closed", f"{self._closed_rounds} rounds in a row were closed")

    def _refused(self, answer: Answer) -> _AgainError:
        detail = answer.detail
        if answer.status == 401:
            if not self.met:
                self.refusal = detail
                self._tell_of_change()
            return _AgainError("credential", f"the server refuses the credential: {detail}")
        return _AgainError(
            f"status {answer.status}",
            f"the server cannot serve: {detail}",
            pause=answer.retry_after,
        )

    async def _leave(self) -> None:
        if not self.met:
            return
        # Where that fails, rounds wait for this agent until their deadline.
        with suppress(TimeoutError, NotReachedError):
            async with asyncio.timeout(self._limits.leave_seconds):
                await self._client.ask("POST", "/v1/leave")


def _spread(share: float) -> float:
    """Return a random number between 1 and `share`, so that agents do not all come at once."""
    return random.uniform(*sorted((share, 1.0)))
