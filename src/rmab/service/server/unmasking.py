"""Opening sums: what a server of a federation with a helper does when a round closes.

    ask who      the helper's agents, their groups and cohorts, and that it is the helper it was
    write        for each group with agents that may be opened together an opening, durably
    ask          the helper for the masks of it, again and again while it is away
    keep         the sum; it is added in the transaction that closes the round

An opening that has no answer is asked for again before any other, by a restarted server too.
What the helper refuses is taken back: the members that it names are to begin anew.
Those that bring nothing new for a few rounds are not waited for (`Lateness`).
A helper of whom ten sums in a row were impossible has other keys than the agents, or lies: it is
shown as trouble and asked for nothing until the server starts again.
A helper that does not answer, or that is no longer where it was, holds up the round and nothing
else: agents play on and their uploads are kept.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import httpx
import numpy as np

from rmab.errors import FederationError, ProtocolError, UnreachableError
from rmab.privacy.accounting import cell_noise, is_due
from rmab.privacy.masks import numbers_of, vector_size
from rmab.privacy.noise import MOST_RELEASES
from rmab.privacy.unmasking import AgentBacklog, ReportBatch, check_sum, choose_batch, parse_answer
from rmab.protocol.checks import is_loopback, read_object
from rmab.protocol.config import Federation
from rmab.protocol.shape import Ints, is_name
from rmab.service.http.telemetry import Log, Metrics
from rmab.service.server.limits import ServerLimits
from rmab.service.store.store import Store
from rmab.service.store.unmasking import Enrolment, Openings, Pending
from rmab.service.store.writer import Jobs
from rmab.text import shown

__all__ = ["HelperAccess", "HelperState", "Lateness", "SumOpening"]

_MOST_BYTES = 2**26  # of an answer
_MOST_IMPOSSIBLE = 10  # sums in a row, after which the helper is not asked any more
_ROUNDS_WAITED = 3  # for agents that bring nothing new


class HelperAccess(NamedTuple):
    """How a server reaches its helper: its credential there, and certificates to trust (PEM)."""

    token: str
    ca: str | None = None
    transport: httpx.AsyncBaseTransport | None = None  # for tests


class HelperState(NamedTuple):
    """What is known of the helper; up: None before it was asked; trouble: what is wrong, if
    anything; since: when that was found."""

    up: bool | None
    since: float
    trouble: str | None = None


class Lateness:
    """Which agents are not waited for: those that have masked nothing more for a few rounds.

    Before the first opening of a group they are waited for `seconds` as well, from when others
    could be opened, as who is not in it waits until there are as many as for an opening.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._came: dict[str, tuple[int, int]] = {}  # agent -> furthest position, and in what round
        self._ready: dict[int, tuple[int, float]] = {}  # group -> round and time

    def late(self, waiting: Sequence[AgentBacklog], round: int, least: int) -> frozenset[str]:
        """Their names, in the round that is closing."""
        found = set()
        ready: Counter[int] = Counter()
        for one in waiting:
            reach, since = self._came.get(one.agent, (-1, round))
            if one.reach > reach:
                reach, since = one.reach, round
            self._came[one.agent] = reach, since
            if round - since >= _ROUNDS_WAITED:
                found.add(one.agent)
            ready[one.group] += one.cohort is None and bool(one.marks)
        for group, many in ready.items():
            if many < least:
                self._ready.pop(group, None)
                continue
            first, then = self._ready.setdefault(group, (round, self._clock()))
            over = round - first >= _ROUNDS_WAITED and self._clock() - then >= self._seconds
            new = {one.agent for one in waiting if one.group == group and one.cohort is None}
            found = found | new if over else found - new
        return frozenset(found)


class SumOpening:
    """Opens sums for one federation; used in one event loop. state: of the helper; releases_left:
    by group, as it told last, where sums have noise."""

    def __init__(
        self,
        federation: Federation,
        access: HelperAccess | None,
        *,
        jobs: Jobs,
        log: Log,
        metrics: Metrics,
        limits: ServerLimits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        assert federation.privacy is not None
        assert federation.privacy.helper is not None
        if access is None:
            raise FederationError(
                "a federation with a helper under [privacy] needs --helper-token-file, with what "
                "`rmab helper-enroll FEDERATION.toml --server` printed"
            )
        self._federation = federation
        self._privacy = federation.privacy
        self._url = federation.privacy.helper
        self._size = vector_size(federation.shape)
        self._jobs = jobs
        self._log = log
        self._metrics = metrics
        self._clock = clock
        self.state = HelperState(None, clock())
        self.releases_left: dict[int, int] = {}
        self._useless: str | None = None  # why the helper is not asked any more
        self._lateness = Lateness(federation.heard_seconds, clock)
        self._seconds = limits.helper_seconds
        self._first_seconds = min(limits.helper_seconds, limits.first_helper_seconds)
        self._http = _client(self._url, access)

    async def check(self) -> None:
        """At the start: FederationError where the helper has other rules, or refuses the server.

        One that is away may come.
        """
        try:
            await self._ask_who(self._first_seconds)
            await self._is_useless()
        except UnreachableError as error:
            self._log("warning", "helper not reached", error=str(error))

    async def stop(self) -> None:
        """Close connections."""
        await self._http.aclose()

    async def open(self, round: int) -> None:
        """Open all sums that may be opened now; UnreachableError where the helper is away.

        What was opened is durable when this returns, and added by `Openings.add`.
        """
        if self._useless is not None:
            raise UnreachableError(self._useless)
        enrolled = await self._ask_who()
        waiting = await self._jobs.run(lambda store: _of(store).waiting(enrolled))
        late = self._lateness.late(waiting, round, self._privacy.least)
        held: set[int] = set()  # groups that the helper will not open now
        asked = False
        while True:
            pending = await self._jobs.run(lambda store: _of(store).pending())
            if pending is None:
                choice = _Choice(
                    enrolled,
                    self._privacy.least,
                    late,
                    frozenset(held),
                    self._federation.budget is not None,
                )
                pending = await self._jobs.run(partial(_written, choice, round, self._clock()))
            if pending is None:
                break
            asked = True
            if not await self._settle(pending):
                held.add(pending.opening.group)
            if await self._is_useless():
                return
        if asked and self._federation.budget is not None:
            with contextlib.suppress(UnreachableError):  # people are told later then
                await self._ask_who()

    async def _is_useless(self) -> bool:
        """Return whether the helper's last sums were all impossible; then it is asked for nothing
        more."""
        found = await self._jobs.run(lambda store: _of(store).all_impossible(_MOST_IMPOSSIBLE))
        if found:
            self._useless = (
                f"its last {_MOST_IMPOSSIBLE} sums were impossible: it is asked for nothing until "
                "the server starts again with a helper that has the agents' mask keys"
            )
            self._is(up=False, trouble=self._useless)
            self._log("error", "helper not asked any more", error=self._useless)
        return found

    async def _settle(self, pending: Pending) -> bool:
        """Ask for an opening, and keep what comes of it; False where its group must wait."""
        opening = pending.opening
        answer = await self._request("POST", "/v1/openings", opening.to_json())
        if answer.status_code == 409:
            return await self._refused(pending, answer)
        if answer.status_code != 200:
            raise self._failed(answer)
        try:
            masks = parse_answer(answer.content, opening, self._size)
        except ProtocolError as error:
            raise self._away(f"the helper's answer is not understood: {error}") from None
        vector = (pending.difference - masks).view(np.int64)
        if self._federation.budget is None:
            wrong = check_sum(
                *numbers_of(vector, self._federation.shape),
                pending.slots,
                len(opening.reports),
                self._federation.shape,
            )
        else:
            wrong = self._without_visits(vector, pending.slots)
        found: Ints | None = vector
        result = "opened"
        if wrong is not None:
            found, result = None, "impossible"
            self._log(
                "error",
                "impossible sum dropped",
                opening=opening.number,
                group=opening.group,
                slots=pending.slots,
                agents=sorted({member.agent for member in opening.reports}),
                error=wrong,
            )
        await self._jobs.run(lambda store: _of(store).answer(opening.number, found))
        self._metrics.openings.labels(result).inc()
        self._log(
            "info",
            "sum opened" if wrong is None else "opening closed",
            opening=opening.number,
            group=opening.group,
            members=len(opening.reports),
            slots=pending.slots,
        )
        return True

    def _without_visits(self, vector: Ints, slots: int) -> str | None:
        """Of a sum with noise: visits, which are not released, become 0; what is impossible in the
        counts, but for 1 time in 10^9, or None."""
        budget, shape = self._federation.budget, self._federation.shape
        assert budget is not None
        vector[shape.size :] = 0
        noise = 14 * cell_noise(budget, shape.plays, MOST_RELEASES)  # of two releases
        if vector.min() < -noise or vector.max() > slots + noise:
            return f"no count may be below {-noise:.0f} or pass {slots + noise:.0f}"
        return None

    async def _refused(self, pending: Pending, answer: httpx.Response) -> bool:
        """Take an opening back; whether another one of its group may be asked for now."""
        opening, table = pending.opening, _table(answer)
        word, detail = table.get("error"), str(table.get("detail"))
        if word not in ("member", "least", "shares", "cohort", "due", "releases"):
            # It is not where it was: a backup was restored, here or there.
            raise self._away(f"the helper does not go on from the last opening: {detail}")
        members = [one for one in table.get("members", ()) if _is_refusal(one)]
        if word == "member" and not members:
            raise self._away("the helper refuses members and does not say which")
        await self._jobs.run(lambda store: _of(store).take_back(opening.number, members))
        self._metrics.openings.labels("refused").inc()
        self._log(
            "warning",
            "opening refused",
            opening=opening.number,
            group=opening.group,
            reason=word,
            agents=sorted({agent for agent, *_ in members}) or None,
            detail=detail[:300],
        )
        return bool(word == "member")

    async def _ask_who(self, seconds: float | None = None) -> dict[str, Enrolment]:
        """The helper's agents by name; FederationError where its rules differ. Where
        it has another database than before, its openings begin anew.

        seconds: for each step of the request.
        """
        answer = await self._request("GET", "/v1/agents", seconds=seconds)
        if answer.status_code == 401:
            self._is(up=False, trouble="it refuses the server's credential")
            raise FederationError(
                f"helper {self._url} refuses the credential in --helper-token-file"
            )
        if answer.status_code != 200:
            raise self._failed(answer)
        table = _table(answer)
        ours: dict[str, Any] = {
            "federation": self._federation.name,
            "fingerprint": self._federation.fingerprint(),
            "privacy": self._privacy.to_table(),
        }
        for key, value in ours.items():
            if table.get(key) != value:
                self._is(up=False, trouble=f"its {key} differs")
                raise FederationError(
                    f"helper {self._url} must have the same {key} as this server, "
                    f"{shown(value)}, got {shown(table.get(key))}"
                )
        chain, agents = table.get("helper"), table.get("agents")
        if not isinstance(chain, str) or not isinstance(agents, list):
            raise self._away("the helper's answer is not understood")
        if not all(isinstance(agent, dict) and "cohort" in agent for agent in agents):
            raise self._away("the helper's rmab is too old to open sums of equal shares")
        enrolled = {
            agent["name"]: Enrolment(agent["group"], agent["cohort"])
            for agent in agents
            if is_name(agent.get("name"))
            and type(agent.get("group")) is int
            and (agent["cohort"] is None or is_name(agent["cohort"]))
            and agent.get("revoked") is None
        }
        self.releases_left = _whole_by_group(table.get("releases_left"))
        began = await self._jobs.run(lambda store: _enter(_of(store), chain))
        if began:
            self._log("warning", "another helper's database answers from now on")
        return enrolled

    async def _request(
        self, method: str, path: str, body: bytes | None = None, *, seconds: float | None = None
    ) -> httpx.Response:
        headers = {} if body is None else {"content-type": "application/json"}
        timeout = self._seconds if seconds is None else seconds
        try:
            async with self._http.stream(
                method, path, content=body, headers=headers, timeout=timeout
            ) as answer:
                size = 0
                parts = []
                async for part in answer.aiter_bytes():
                    size += len(part)
                    if size > _MOST_BYTES:
                        raise self._away("the helper's answer is too long")
                    parts.append(part)
                found = httpx.Response(answer.status_code, content=b"".join(parts))
        except (httpx.HTTPError, OSError) as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise self._away(f"the helper is not reached: {reason}") from None
        if found.status_code in (200, 409):
            self._is(up=True)
        return found

    def _failed(self, answer: httpx.Response) -> UnreachableError:
        detail = _table(answer).get("detail")
        return self._away(f"the helper answered {answer.status_code}: {shown(detail)}")

    def _away(self, trouble: str) -> UnreachableError:
        self._is(up=False, trouble=trouble)
        self._metrics.openings.labels("away").inc()
        return UnreachableError(trouble)

    def _is(self, *, up: bool, trouble: str | None = None) -> None:
        self._metrics.helper_up.set(up)
        if (up, trouble) != (self.state.up, self.state.trouble):
            self.state = HelperState(up, self._clock(), trouble)


def _of(store: Store) -> Openings:
    assert store.openings is not None
    return store.openings


def _enter(openings: Openings, chain: str) -> bool:
    """A job: openings are of this chain from now on; whether they were of another one."""
    before = openings.chain()
    if before != chain:
        openings.begin_chain(chain)
    return before not in (None, chain)


class _Choice(NamedTuple):
    """What the next opening is chosen by.

    enrolled: agents by name; late: those that are not waited for; held: groups that wait; noise:
    whether sums are released with it, and so when their slots have doubled.
    """

    enrolled: Mapping[str, Enrolment]
    least: int
    late: frozenset[str]
    held: frozenset[int]
    noise: bool


def _written(choice: _Choice, round: int, now: float, store: Store) -> Pending | None:
    """A job: the next opening, written down; None if there is none."""
    openings = _of(store)
    by_group: dict[int, list[AgentBacklog]] = defaultdict(list)
    for one in openings.waiting(choice.enrolled):
        by_group[one.group].append(one)
    for group in sorted(by_group.keys() - choice.held):
        together = choose_batch(by_group[group], choice.least, choice.late)
        if together.size and (not choice.noise or _is_due(openings, group, together)):
            return openings.write(group, together.reports, round, now)
    return None


def _is_due(openings: Openings, group: int, together: ReportBatch) -> bool:
    """Whether a sum of these agents would be released now."""
    before = openings.sums().get(group)
    slots = together.size + (0 if before is None else before.slots)
    return is_due(slots, len(together.agents), None if before is None else before.slots)


def _whole_by_group(value: Any) -> dict[int, int]:
    """Whole numbers by group, of a table in JSON."""
    items = value.items() if isinstance(value, dict) else ()
    return {int(key): n for key, n in items if key.isdecimal() and type(n) is int}


def _is_refusal(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(isinstance(x, str) for x in value)


def _table(answer: httpx.Response) -> Mapping[str, Any]:
    try:
        return read_object(answer.content)
    except ProtocolError:
        return {}


def _client(url: str, access: HelperAccess) -> httpx.AsyncClient:
    verify: ssl.SSLContext | bool = True
    if access.ca is not None:
        try:
            verify = ssl.create_default_context(cafile=access.ca)
        except (OSError, ssl.SSLError) as error:
            raise FederationError(
                f"--helper-ca {access.ca}: no certificates can be read from it: {error}"
            ) from None
    return httpx.AsyncClient(
        base_url=url.rstrip("/"),
        headers={"authorization": f"Bearer {access.token}", "accept": "application/json"},
        verify=verify,
        trust_env=not is_loopback(httpx.URL(url).host),
        transport=access.transport,
    )
