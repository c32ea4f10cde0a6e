"""Agent of a served federation, as most programs use it.

    with rmab.Agent("https://server:8443", token=token) as agent:
        while True:
            arms = agent.choose()          # K arms, at once, from the table it has
            states = radio.sense(arms)
            agent.observe(states)          # counts; talks to the server in the background

Where the federation has arms that are always observed, `choose` is given the states that they are
in now, before anything is played:

            arms = agent.choose(radio.look(agent.always_observed))

`choose` and `observe` never wait for the network and never raise because of it: slow work is done
in the background (`rmab.service.agent.exchange`). When the episode is over its counts are handed
over, and the agent plays on by the table it has until the next round is there. All its observations
are in its own small file before `observe` returns (`rmab.service.agent.state_file`), so that a
process that ends, however it ends, loses nothing. The next process sends the counts that the last
one left under that one's *incarnation*, and begins a new one with nothing observed: how many slots
passed in between is not known. With a mask key it goes on with the same incarnation, with nothing
observed, so that slots are summed across processes.

An arm that could not be read (its state is NaN, say, or none that it has) is one without an
observation in that slot: the slot passes and nothing is counted (`rmab.protocol.player`).

Where the server refuses an incarnation because it has something else under it (the agent's file was
restored from a backup, say), it is not known which counts it has; the agent gives the incarnation
up, with its counts that the server does not have, and begins a new one.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack
from urllib.parse import urlsplit

import httpx
import numpy as np
import numpy.typing as npt

from rmab.errors import (
    FederationError,
    ModelError,
    ProtocolError,
    StorageError,
    UnavailableError,
    UnreachableError,
)
from rmab.privacy.masks import KEY_PREFIX, MaskKey, parse_key
from rmab.protocol.messages import RoundMessage, parse_round
from rmab.protocol.player import Player
from rmab.service.agent.client import make_client
from rmab.service.agent.exchange import Exchange
from rmab.service.agent.limits import AgentLimits
from rmab.service.agent.outbox import Offer, RateLimitedLog, Writing, recovered, resumed
from rmab.service.agent.state_file import AgentFile, default_file
from rmab.service.http.tokens import parse_token
from rmab.text import is_loopback, is_whole, shown

__all__ = ["MAX_BAD_READINGS", "Agent"]

MAX_BAD_READINGS = 10  # in a row, after which a device is taken to have failed

log = logging.getLogger("rmab.agent")


class Tuning(TypedDict, total=False):
    """Further arguments of an agent: seconds for each step of a request; and, for tests, httpx's
    transport and limits."""

    timeout: float
    transport: httpx.AsyncBaseTransport | None
    limits: AgentLimits | None


class Agent:
    """Agent that plays by its server's plans and uploads its counts.

    Its methods are for one thread. It is to be closed, best by `with`.

    Parameters
    ----------
    url
        The server's address, https:// unless it is on this machine.
    token
        The agent's credential.
    file
        The agent's own file (default: in $XDG_STATE_HOME/rmab, by server and credential).
    ca
        File of certificates to trust instead of the usual ones.
    patience
        Seconds that the first start without a file waits for the server, and a start with a file
        that was another credential's.
    max_bad_readings
        Slots in a row with a bad reading after which `observe` and `skip` raise UnavailableError.
    mask_key
        Key that `rmab helper-enroll` printed, in a federation with a helper: counts then leave
        only masked.
    **tuning
        `timeout`, seconds for each step of a request; `transport` and `limits`, for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str,
        file: str | PathLike[str] | None = None,
        ca: str | PathLike[str] | None = None,
        patience: float = 60.0,
        max_bad_readings: int = MAX_BAD_READINGS,
        mask_key: str | None = None,
        **tuning: Unpack[Tuning],
    ) -> None:
        self._limits = tuning.get("limits") or AgentLimits()
        if not is_whole(max_bad_readings) or max_bad_readings < 1:
            raise ModelError(
                f"max_bad_readings must be a whole number of at least 1, "
                f"got {shown(max_bad_readings)}"
            )
        address, loopback = _address(url)
        parsed = parse_token(str(token))
        if parsed is None:
            raise FederationError(
                "the token must be as `rmab enroll` printed it: rmab_, 16 digits, _, 43 characters"
            )
        writing = Writing(_mask_key(mask_key))
        client = make_client(
            address,
            token,
            tuning.get("timeout", 10.0),
            self._limits,
            ca=None if ca is None else str(ca),
            loopback=loopback,
            transport=tuning.get("transport"),
        )
        self._closed = True
        path = default_file(address, parsed[0]) if file is None else Path(file)
        self._file = AgentFile(path, self._limits, parsed[0])
        try:
            self._writing = writing
            self._check_masking()
            message = self._kept_message()
            before, earlier = None, []
            if not writing.masks:
                earlier = recovered(self._file, message, writing)
            elif message is not None:
                message = replace(message, visit_factor=None)  # such ends would tell about visits
                before = resumed(self._file, message, writing)
            if before is None:
                incarnation = secrets.token_hex(16)
                self._begin(incarnation)
            else:
                incarnation = before.player.incarnation
            self._exchange = Exchange(
                client,
                self._file,
                incarnation,
                self._limits,
                message=message,
                earlier=earlier,
                writing=writing,
                before=before,
            )
            self._exchange.start()
            try:
                if message is None or self._file.of_another_key():
                    message = self._first_round(patience)
                self._player = Player(message, incarnation)
                if before is not None:
                    self._player.go_on(before.player)
                self._player.resume_learner(self._file.learner_state())
            except BaseException:
                self._exchange.stop()
                raise
        except BaseException as error:
            self._file.close()
            if isinstance(error, StorageError) and error.lasting:
                raise FederationError(str(error)) from None
            raise
        self._closed = False
        self.bad_readings = 0  # slots since the process began in which an arm could not be read
        self._bad_in_a_row = 0
        self._max_bad_readings = max_bad_readings
        self._chosen: list[int] | None = None
        self._looks: list[int | None] = []  # of this slot, at the arms that are always observed
        self._unread: str | None = None  # what was wrong with them
        # Slots of this incarnation that were handed over to be sent or to be kept together, and the
        # last one in the file.
        self._offered = self._folded = self._kept = self._player.slots
        self._reported: int | None = None  # this episode's length, once it is over
        # Slots and reward of this process's earlier incarnations, less what was gone on with.
        self._before = (-self._player.slots, 0.0)
        self._limited_log = RateLimitedLog(self._limits.quiet_seconds)
        # What earlier incarnations counted, once the agent draws for itself.
        self._counted: npt.NDArray[np.int64] | None = None
        self._resumed = self._player.own_counts.copy()  # that this incarnation began with
        self._alike: tuple[float, ...] | None = None
        self._draw()

    def _check_masking(self) -> None:
        """Refuse to go on in clear where nothing left this machine unmasked before."""
        if not self._writing.masks and self._file.masked_by() is not None:
            raise FederationError(
                f"{self._file.path} was used with a mask key, and without one its counts would be "
                "sent in clear: give the key, or another file"
            )

    def _begin(self, incarnation: str, instead_of: str | None = None) -> None:
        """Have the file begin an incarnation."""
        if self._writing.name is None:
            self._file.begin(incarnation, instead_of=instead_of)
        else:
            self._file.begin_masked(incarnation, self._writing.since, self._writing.name)

    def _kept_message(self) -> RoundMessage | None:
        """The round in the file; a file with one that is none is set aside."""
        kept = self._file.message()
        try:
            return None if kept is None else parse_round(kept)
        except ProtocolError as error:
            self._file.quarantine(str(error))
            return None

    def _first_round(self, patience: float) -> RoundMessage:
        """That of the first contact: before it the arms, or whose the file is, are not known."""
        exchange = self._exchange
        exchange.wait(
            lambda: exchange.met or bool(exchange.foreign_file or exchange.refusal), patience
        )
        if exchange.met:
            assert exchange.message is not None
            return exchange.message
        if exchange.foreign_file is not None:
            raise FederationError(exchange.foreign_file)
        if exchange.refusal is not None:
            raise FederationError(f"the server refuses the credential: {exchange.refusal}")
        before = (
            "there is none from before"
            if exchange.message is None
            else f"{self._file.path} was last used with another credential"
        )
        raise UnreachableError(
            f"the server gave no round within {patience:g} s, and {before}: {exchange.trouble}"
        )

    # ---------------------------------------------------------------------------------- every slot

    def choose(
        self, states: Sequence[int | None] | None = None, *, unread: str | None = None
    ) -> list[int]:
        """The K arms to play now, from 0, in ascending order.

        states: those that the arms of `always_observed` are in now, in its order, as `observe`
        takes them, or unread: why they could not be read; nothing where there are no such arms.
        """
        self._follow()
        always = self.always_observed
        if states is None and unread is None and always:
            raise ModelError(
                f"choose must be given the states of {len(always)} arms that are always observed"
            )
        self._looks, self._unread = [None] * len(always), unread
        if states is not None:
            self._looks, self._unread = _readings(always, states, self.arms)
        self._player.look(self._looks)
        chosen: list[int] = self._player.choose().tolist()
        self._chosen = chosen
        return list(chosen)

    def observe(self, states: Sequence[int]) -> None:
        """Count the states of the arms of the last `choose`, from 0, in its order; a slot has
        passed.

        An impossible state counts as not observed. UnavailableError after `max_bad_readings` slots
        in a row with one.
        """
        arms = self._played("observe")
        seen, wrong = _readings(arms, states, self.arms)
        self._pass_slot(arms, seen)
        self._judge(wrong or self._unread)

    def skip(self, reason: str) -> None:
        """No arm of the last `choose` could be read, and why; a slot has passed all the same."""
        arms = self._played("skip")
        self._pass_slot(arms, [None] * len(arms))
        self._judge(reason)

    def _played(self, call: str) -> list[int]:
        self._check_open()
        if self._chosen is None:
            raise ModelError(f"{call} must follow choose: no arms were chosen for this slot")
        return self._chosen

    def _judge(self, wrong: str | None) -> None:
        """Count a slot whose reading was good (None) or bad."""
        if wrong is None:
            self._bad_in_a_row = 0
            return
        self.bad_readings += 1
        self._bad_in_a_row += 1
        if self._limited_log.is_due("reading"):
            log.warning("a bad reading is skipped (%d so far): %s", self.bad_readings, wrong)
        if self._bad_in_a_row >= self._max_bad_readings:
            raise UnavailableError(
                f"{self._bad_in_a_row} bad readings in a row, the most that may be; the last: "
                f"{wrong}"
            )

    def _pass_slot(self, arms: list[int], seen: list[int | None]) -> None:
        player = self._player
        player.observe(arms, seen)
        self._chosen = None
        self._keep_slot(arms, seen)
        if self._writing.at_mark(player.slots):
            self._hand_over(send=True, mark=True)
        if player.over and self._reported is None:
            self._reported = player.length
            self._hand_over(send=True)
            self._exchange.want_round()
        elif player.slots - self._folded >= self._limits.fold_slots:
            self._hand_over(send=player.over)

    def _follow(self) -> None:
        """Take up the server's news: a new round, or that a new incarnation is needed."""
        self._check_open()
        exchange, player = self._exchange, self._player
        if exchange.foreign_file is not None:
            # What was observed here is not the other's, who finds its file as it left it.
            with suppress(StorageError):
                self._file.forget([player.incarnation])
            raise FederationError(exchange.foreign_file)
        if exchange.refuses(player.incarnation):
            self._renew()
        elif exchange.message is not player.message and exchange.message is not None:
            player.begin(exchange.message)
            self._draw()
            self._reported = None

    def _draw(self) -> None:
        """Where the server tells laws of the round, play by a draw of the agent's own."""
        player, told = self._player, self._exchange.laws
        if told is None or told.round != player.round:
            self._alike = None
            return
        from rmab.learning.channel.local_posterior import LEAST_BORROWING
        from rmab.service.agent.local_plan import own_plan

        if self._counted is None:
            before = self._file.own_counts(player.counts.size)
            none = np.zeros_like(player.counts)
            self._counted = none if before is None else before.reshape(player.counts.shape)
            self._counted = self._counted - self._resumed
        counts = player.own_counts + self._counted
        try:
            self._file.keep_own_counts(counts)
        except StorageError as error:
            self._log_storage_error(error)
        # Of the incarnation and the round: a round that is begun again is played as before.
        generator = np.random.default_rng([*player.incarnation.encode(), player.round])
        plan, self._alike = own_plan(told, player.message, counts, generator)
        player.play_by(plan)
        unlike = [n for n, weight in enumerate(self._alike, 1) if weight < LEAST_BORROWING]
        if unlike and told.doubt < 1 and self._limited_log.is_due("alike"):
            log.warning(
                "what is observed here of arm %s is unlike what the other agents observe: it is "
                "learnt alone",
                ", ".join(map(str, unlike)),
            )

    def _renew(self) -> None:
        old = self._player
        if self._counted is not None:
            self._counted = self._counted + old.own_counts
        message = self._exchange.message
        assert message is not None
        incarnation = secrets.token_hex(16)
        self._before = (self._before[0] + old.slots, self._before[1] + old.reward)
        self._player = Player(message, incarnation)
        self._player.resume_learner(old.learner_state)
        self._draw()
        self._chosen = None
        self._offered = self._folded = self._kept = 0
        self._reported = None
        self._exchange.renew(incarnation, self._exchange.position)
        try:
            self._begin(incarnation, instead_of=old.incarnation)
        except StorageError as error:
            self._log_storage_error(error)

    def _keep_slot(self, arms: list[int], states: list[int | None]) -> None:
        slot = self._player.slots
        try:
            self._file.keep_slot(slot, arms, states, self._player.learner_state, self._looks)
        except StorageError as error:
            self._log_storage_error(error)
            return
        if slot != self._kept + 1:  # the file misses some: rows after them need a snapshot
            self._hand_over(send=False)
        self._kept = slot

    def _log_storage_error(self, error: StorageError) -> None:
        if self._limited_log.is_due("slot"):
            log.error("%s; the agent goes on, but a restart would lose it", error)

    def _hand_over(self, *, send: bool, mark: bool = False) -> None:
        player = self._player
        upload = player.upload(1)  # the exchange numbers what it sends
        if mark:  # which reports no episode
            upload = replace(upload, length=0)
        elif self._reported is not None:
            upload = replace(upload, length=self._reported)
        if send:
            self._offered = player.slots
        self._folded = player.slots
        last_seen, age = player.last_seen.copy(), player.age.copy()
        self._exchange.offer(Offer(upload, last_seen, age, send, mark))

    # ------------------------------------------------------------------------------- how it stands

    @property
    def round(self) -> int:
        """The number of the round that is played."""
        return self._player.round

    @property
    def plays(self) -> int:
        """K, the number of arms played in each slot."""
        return self._player.message.shape.plays

    @property
    def arms(self) -> tuple[int, ...]:
        """The number of states of each arm."""
        return self._player.message.shape.states

    @property
    def always_observed(self) -> tuple[int, ...]:
        """The arms, from 0, whose states `choose` is to be given in every slot."""
        return self._player.message.shape.always

    @property
    def action_dependent(self) -> tuple[int, ...]:
        """The arms, from 0, that move otherwise when they are played."""
        return self._player.message.shape.controlled

    @property
    def alike(self) -> list[float] | None:
        """Weight of the other agents' observations beside this one's, by arm, from 0 to 1; None
        where the server's plan is played. It is never sent."""
        return None if self._alike is None else list(self._alike)

    @property
    def slots(self) -> int:
        """Slots since the process began."""
        return self._before[0] + self._player.slots

    @property
    def reward(self) -> float:
        """Reward of those slots: of arms that were played and of arms that are always observed. The
        reward of other idle arms is not seen."""
        return self._before[1] + self._player.reward

    @property
    def uploads(self) -> int:
        """How many uploads the server has acknowledged since the process began."""
        return self._exchange.uploads

    @property
    def unsent(self) -> bool:
        """Whether there are observations that the server has not acknowledged."""
        return not self._exchange.has_all(self._player.slots)

    @property
    def over(self) -> bool:
        """Whether the episode is over and the next round is not here yet."""
        return self._player.over and self._exchange.message is self._player.message

    @property
    def slot_seconds(self) -> float | None:
        """Seconds of the shortest slot that the server accepts; None where it named none."""
        return self._exchange.slot_seconds

    @property
    def connected(self) -> bool:
        """Whether the last attempt to reach the server worked."""
        return self._exchange.connected

    @property
    def file(self) -> Path:
        """The agent's own file."""
        return self._file.path

    # ---------------------------------------------------------------------- the calls that may wait

    def flush(self, timeout: float) -> bool:
        """Send unsent counts, also within an episode, and wait until the server has them; False
        where that takes longer than `timeout` seconds."""
        self._check_open()
        if self._chosen is None and self._exchange.refuses(self._player.incarnation):
            self._renew()
        if self._player.slots > self._offered:
            self._hand_over(send=True)
        self._exchange.retry_now()
        exchange, incarnation = self._exchange, self._player.incarnation

        def settled() -> bool:
            over = exchange.foreign_file is not None or exchange.refuses(incarnation)
            return over or not self.unsent

        exchange.wait(settled, timeout)
        if self._chosen is None and exchange.refuses(incarnation):
            self._renew()
        return not self.unsent

    def wait(self, timeout: float) -> bool:
        """Wait until a round is here that the next `choose` takes up, as a simulation may; False
        where that takes longer than `timeout` seconds."""
        self._check_open()
        exchange, player = self._exchange, self._player

        def here() -> bool:
            return (
                exchange.message is not player.message
                or exchange.refuses(player.incarnation)
                or exchange.foreign_file is not None
            )

        exchange.want_round()
        return exchange.wait(here, timeout)

    def meet(self, timeout: float) -> bool:
        """Wait until the server has given a round in this process, as a simulation may before it
        begins; False where that takes longer than `timeout` seconds."""
        self._check_open()
        exchange = self._exchange
        return exchange.wait(lambda: exchange.met or exchange.foreign_file is not None, timeout)

    def close(self) -> None:
        """Send unsent counts if that goes quickly, tell the server, and end. Unsent counts stay in
        the file."""
        if self._closed:
            return
        try:
            if self.unsent:
                self.flush(self._limits.close_seconds)
        finally:
            self._closed = True
            self._exchange.stop()
            self._file.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ModelError("the agent is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _address(url: str) -> tuple[str, bool]:
    """The server's address without a slash at its end, and whether it is this machine."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        httpx.URL(url)
    except (ValueError, TypeError, AttributeError, httpx.InvalidURL):
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in ("http", "https") or not host or port == 0 or parts.query:
        raise FederationError(
            f"the server's address must be like https://server:8443, got {shown(url)}"
        )
    if parts.username is not None or parts.password is not None:
        raise FederationError("the server's address must have no user name and password in it")
    loopback = is_loopback(host)
    if parts.scheme == "http" and not loopback:
        raise FederationError(
            f"the server's address must begin with https:// unless it is on this machine, got "
            f"{shown(url)}: the credential would go over the network unprotected"
        )
    return url.rstrip("/"), loopback


def _mask_key(text: str | None) -> MaskKey | None:
    key = None if text is None else parse_key(str(text))
    if text is not None and key is None:
        raise FederationError(
            f"the mask key must be as `rmab helper-enroll` printed it: {KEY_PREFIX}, 43 characters"
        )
    return None if key is None else MaskKey(key)


def _readings(
    arms: Sequence[int], states: Any, sizes: Sequence[int]
) -> tuple[list[int | None], str | None]:
    """Return the state of each arm, None for one that could not be read, and the error, None if
    there is none.

    sizes: the number of states of each arm. Messages count arms from 1.
    """
    wrong: str | None
    try:
        given = list(states.tolist() if isinstance(states, np.ndarray) else states)
    except Exception:  # it is none, or is read only now, and cannot be
        wrong = f"states must be a list, one for each of {len(arms)} arms, got {shown(states)}"
        return [None] * len(arms), wrong
    if len(given) != len(arms):
        wrong = f"there must be one state for each of {len(arms)} arms, got {shown(given)}"
        return [None] * len(arms), wrong
    seen: list[int | None] = []
    wrong = None
    for arm, state in zip(arms, given, strict=True):
        seen.append(None)
        if not _is_state(state):
            wrong = f"arm {arm + 1}: a state must be a whole number, got {shown(state)}"
        elif not 0 <= state < sizes[arm]:
            wrong = f"arm {arm + 1}: the state must lie from 0 to {sizes[arm] - 1}, got {state}"
        else:
            seen[-1] = int(state)
    return seen, wrong


def _is_state(value: Any) -> bool:
    """A whole number, also as a float: an array with a NaN in it has no others."""
    if isinstance(value, float | np.floating):
        return float(value).is_integer()
    return isinstance(value, int | np.integer | np.bool_)
