"""Uploads at a server: read, and checked for being possible after the ones before.

In `slots` slots with K plays each an agent's observations of an arm are one sequence of at most
one a slot. So, with p = counts summed over gaps and n the observations of an arm,

    observations of all arms <= K slots          n <= slots
    sum of p = n - 1, or 0 if n = 0              sum of gaps <= slots - 1, those above G as G + 1
    pairs from s = visits(s), less one for the state observed last
    pairs to s' = visits(s'), less one for the state observed first

The last two lines say that what enters and what leaves a state differ by at most one: for two
states, that pairs 0, 1 and pairs 1, 0 do. From one upload of an incarnation to the next nothing
falls, and what is added is possible in the slots that were added.

Two kinds of arms have weaker rules, as a missing reading breaks their sequence in two. For an
action-dependent arm observed when played,

    pairs from s <= visits(s), pairs to s' <= visits(s')         sum of p <= n - 1, or 0 if n = 0

For an arm that is always observed, with p_0 the pairs with a play at the first,

    p_0 from s <= visits(s)              n + pairs without a play at the first <= slots
    sum of p <= slots - 1                |pairs from s - pairs to s| <= slots - sum of p
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import ProtocolError
from rmab.policies.episodes import LONGEST
from rmab.privacy.masks import (
    MASKED_KEYS,
    NONCE_BYTES,
    TAG_BYTES,
    MaskedUpload,
    read_words,
    vector_size,
)
from rmab.protocol.checks import (
    MAX_WHOLE,
    hexadecimal,
    listed,
    malformed,
    read_object,
    take,
    whole_number,
)
from rmab.protocol.shape import UPLOAD_KEYS, Ints, Shape, Upload, check_protocol
from rmab.text import shown

__all__ = [
    "CREDIT_SECONDS",
    "Credit",
    "LaneCounts",
    "Merged",
    "Record",
    "check_growth",
    "check_pace",
    "most_bytes",
    "parse_masked",
    "parse_upload",
]

_INT64 = np.dtype(np.int64)
_MAX_MATRIX_STATES = 4  # largest number of states for which sums are one product
# Slots and seconds in advance, as restarts begin with a slot and clocks differ. They are few, as a
# liar does most harm in the beginning, when others have little.
_BURST_SLOTS, _BURST_SECONDS = 10, 10.0
CREDIT_SECONDS = 86_400.0  # a day: the most time that may be claimed at once
_LONGEST_PAUSE = 86_400  # longest wait, in seconds, that an agent is asked for
_QUOTES = 2 * len(UPLOAD_KEYS) + 4  # quotes in an upload: keys, federation and incarnation


class Merged(NamedTuple):
    """Counts (C, S, S, N) and visits (S, N) of all agents, and the number of agents with any."""

    counts: Ints
    visits: Ints
    agents: int


class LaneCounts(NamedTuple):
    """Counts of each agent stream (lane), over all its incarnations.

    counts: (L, C, S, S, N); visits: (L, S, N). L is one more than the highest lane that was
    enrolled, and at least 1; an agent without uploads has zeros. weights: (L,), of each agent's
    counts in a sum; None where all are 1.
    """

    counts: Ints
    visits: Ints
    weights: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Record:
    """Last accepted upload of an incarnation."""

    sequence: int
    round: int
    slots: int
    counts: Ints  # (C, S, S, N)
    visits: Ints  # (S, N)


def most_bytes(shape: Shape) -> int:
    """Return the largest size of an upload's body, with all digits of every number."""
    return 4096 + 24 * vector_size(shape)


def parse_upload(body: bytes, shape: Shape, federation: str) -> Upload:
    """Read the upload in a request's body; ProtocolError if it is malformed or impossible."""
    table = read_object(body)
    incarnation, numbers = _read_head(table, UPLOAD_KEYS, federation)
    found = _of_like_arms(body, table, shape) or _of_any_arms(table, shape)
    _check_possible(*found, numbers["slots"], shape)
    return Upload(incarnation, **numbers, counts=found[0], visits=found[1])


def parse_masked(body: bytes, shape: Shape, federation: str) -> MaskedUpload:
    """Read the masked upload in a request's body; ProtocolError if it is malformed."""
    table = read_object(body)
    if table.keys() == set(MASKED_KEYS) - {"since"}:
        raise malformed(
            "since is missing: sums are of equal numbers of slots, and this agent's rmab is too "
            "old to mask its counts at marks; update it"
        )
    incarnation, numbers = _read_head(table, MASKED_KEYS, federation)
    since = whole_number("since", table["since"], 0)
    for key, value in (("slots", numbers["slots"]), ("since", since)):
        if value > LONGEST:
            raise malformed(f"{key} must be at most {LONGEST}, got {value}")
    S = max(shape.states)
    return MaskedUpload(
        incarnation,
        **numbers,
        counts=np.zeros((shape.kinds, S, S, shape.n_arms), np.int64),
        visits=np.zeros((S, shape.n_arms), np.int64),
        nonce=hexadecimal("nonce", table["nonce"], NONCE_BYTES),
        masked=read_words("masked", table["masked"], vector_size(shape)),
        tag=hexadecimal("tag", table["tag"], TAG_BYTES),
        since=since,
    )


def _read_head(
    table: Mapping[str, Any], keys: Sequence[str], federation: str
) -> tuple[str, dict[str, int]]:
    """Read the incarnation, and sequence, round, slots and length."""
    take(table, "the upload", *keys)
    check_protocol(table["protocol"])
    if table["federation"] != federation:
        raise malformed(f"federation must be {federation!r}, got {shown(table['federation'])}")
    incarnation = hexadecimal("incarnation", table["incarnation"], 16).hex()
    numbers = {
        key: whole_number(key, table[key], least)
        for key, least in (("sequence", 1), ("round", 1), ("slots", 0), ("length", 0))
    }
    if numbers["length"] > numbers["slots"]:
        raise malformed(
            f"length must be at most slots, {numbers['slots']}, got {numbers['length']}"
        )
    return incarnation, numbers


def _of_like_arms(body: bytes, table: Mapping[str, Any], shape: Shape) -> tuple[Ints, Ints] | None:
    """Read as `_of_any_arms` does, faster, arms of one size; None where that may refuse."""
    N, S = shape.n_arms, shape.states[0]
    if shape.states.count(S) < N or shape.always or body.count(b'"') != _QUOTES:
        return None
    if b"true" in body or b"false" in body:
        return None
    counts = all_integers(table["counts"], (N, shape.kinds, S, S))
    visits = all_integers(table["visits"], (N, S))
    if counts is None or visits is None:
        return None
    return np.ascontiguousarray(counts.transpose(1, 2, 3, 0)), np.ascontiguousarray(visits.T)


def _of_any_arms(table: Mapping[str, Any], shape: Shape) -> tuple[Ints, Ints]:
    """Read counts and visits, padded, from one list for each arm."""
    S = max(shape.states)
    counts = np.zeros((shape.kinds, S, S, shape.n_arms), np.int64)
    visits = np.zeros((S, shape.n_arms), np.int64)
    listed("counts", table["counts"], shape.n_arms)
    listed("visits", table["visits"], shape.n_arms)
    for arm, (kinds, s) in enumerate(zip(shape.kinds_by_arm, shape.states, strict=True)):
        counts[:kinds, :s, :s, arm] = integers(
            f"counts[{arm}]", table["counts"][arm], (kinds, s, s)
        )
        visits[:s, arm] = integers(f"visits[{arm}]", table["visits"][arm], (s,))
    return counts, visits


def _check_possible(counts: Ints, visits: Ints, slots: int, shape: Shape) -> None:
    """Refuse counts that no sequence of observations gives in that many slots."""
    # 64-bit sums of numbers up to 2^53 could wrap; no count passes the slots, so that comes first.
    numbers = np.concatenate((counts.reshape(-1, shape.n_arms), visits))  # (C S S + S, N)
    largest = int(numbers.max())
    if largest > slots:
        raise malformed(f"no count may pass slots, {slots}, got {largest}")
    if slots > LONGEST:
        raise malformed(f"slots must be at most {LONGEST}, got {slots}")
    S = len(visits)
    if S <= _MAX_MATRIX_STATES:
        sums = _sums(shape.kinds, S) @ numbers  # (2 S + 3, N)
    else:
        sums = _add_up(counts, visits)
    observed, total, span = sums[2 * S :].tolist()
    if sum(observed) > shape.plays * slots:
        raise malformed(
            f"visits must add up to at most {shape.plays} observations in each of {slots} slots, "
            f"got {sum(observed)}"
        )
    rests = sums[: 2 * S]  # visits less pairs from and less pairs to each state
    in_sequence = int(rests.view(np.uint64).max()) <= 1  # a negative one is large without its sign
    always, controlled = set(shape.always), set(shape.controlled)
    for arm, seen in enumerate(observed):
        if seen > slots:
            raise malformed(
                f"visits[{arm}] must add up to at most one observation in each of {slots} slots, "
                f"got {seen}"
            )
        if arm in always:
            _check_always(arm, counts[:2, :, :, arm], visits[:, arm], slots)
            continue
        most = seen - 1 if seen else 0
        broken = arm in controlled  # a play without a reading parts what is before and after it
        if total[arm] != most and (total[arm] > most or not broken):
            raise malformed(
                f"counts[{arm}] must add up to {'at most ' * broken}{most} pairs of successive "
                f"observations, as there are {seen} observations, got {total[arm]}"
            )
        if seen and span[arm] > slots - 1:
            raise malformed(
                f"counts[{arm}]: the gaps must fit into {slots} slots, but take {span[arm] + 1}"
            )
        if in_sequence:
            continue
        for name, rest in (("from", rests[:S, arm]), ("to", rests[S:, arm])):
            if seen and (int(rest.min()) < 0 or (int(rest.max()) > 1 and not broken)):
                state = int(np.argmax(np.abs(rest - 0.5)))
                raise malformed(
                    f"counts[{arm}]: pairs {name} state {state} must be its visits or one less, "
                    f"{int(visits[state, arm])}, got {int(visits[state, arm] - rest[state])}: "
                    "observations of an arm form one sequence"
                )


def _check_always(arm: int, counts: Ints, visits: Ints, slots: int) -> None:
    """Refuse counts (2, S, S) and visits (S,) of an arm that is always observed if no sequence of
    readings gives them."""
    pairs = counts.sum(0)
    total, idle = int(pairs.sum()), int(counts[1].sum())
    if total > max(0, slots - 1):
        raise malformed(
            f"counts[{arm}] must add up to at most {max(0, slots - 1)} pairs of consecutive slots, "
            f"got {total}"
        )
    if int(visits.sum()) + idle > slots:
        raise malformed(
            f"visits[{arm}] and the pairs that begin without a play must add up to at most {slots} "
            f"slots, got {int(visits.sum())} and {idle}"
        )
    excess = counts[0].sum(1) - visits
    if int(excess.max()) > 0:
        state = int(excess.argmax())
        raise malformed(
            f"counts[{arm}][0]: pairs from state {state} must be at most its visits, "
            f"{int(visits[state])}, got {int(visits[state] + excess[state])}"
        )
    uneven = np.abs(pairs.sum(1) - pairs.sum(0))
    if int(uneven.max()) > slots - total:
        state = int(uneven.argmax())
        raise malformed(
            f"counts[{arm}]: pairs from and to state {state} must differ by at most "
            f"{slots - total}, as {total} of {slots} slots end one, got {int(uneven[state])}"
        )


def _add_up(counts: Ints, visits: Ints) -> Ints:
    """Return sums of each arm's numbers, (2 S + 3, N): visits less pairs from each state, then
    less pairs to it; observations; pairs; slots of all gaps."""
    pairs = counts.sum(0)  # (S, S, N)
    gaps = np.arange(1, len(counts) + 1)
    rest = (visits.sum(0), pairs.sum((0, 1)), gaps @ counts.sum((1, 2)))
    return np.concatenate((visits - pairs.sum(1), visits - pairs.sum(0), np.stack(rest)))


@lru_cache(maxsize=8)
def _sums(kinds: int, S: int) -> Ints:
    """Return `_add_up` as one matrix, (2 S + 3, C S S + S): cheaper where there are few states."""
    pairs = np.zeros((2 * S + 3, kinds, S, S), np.int64)
    visits = np.zeros((2 * S + 3, S), np.int64)
    for s in range(S):
        pairs[s, :, s] -= 1
        pairs[S + s, :, :, s] -= 1
        visits[s, s] = visits[S + s, s] = 1
    visits[2 * S] = pairs[2 * S + 1] = 1
    pairs[2 * S + 2] = np.arange(1, kinds + 1)[:, None, None]
    return np.concatenate((pairs.reshape(len(pairs), -1), visits), axis=1)


def check_growth(
    before: Record | None, upload: Upload, plays: int, always: Sequence[int] = ()
) -> None:
    """Refuse an upload that cannot follow the incarnation's last one.

    plays: K; always: the arms that are observed in every slot.
    """
    if before is None:
        return
    if upload.sequence <= before.sequence:
        raise backwards(f"sequence must be above {before.sequence}, got {upload.sequence}")
    if upload.round < before.round:
        raise backwards(f"round must be at least {before.round}, got {upload.round}")
    slots = upload.slots - before.slots
    if slots < 0:
        raise backwards(f"slots must be at least {before.slots}, got {upload.slots}")
    for name, now, then in (
        ("counts", upload.counts, before.counts),
        ("visits", upload.visits, before.visits),
    ):
        if (now < then).any():
            raise backwards(f"{name} must not fall from one upload to the next")
    observed = (upload.visits - before.visits).sum(0)
    if int(observed.max()) > slots or int(observed.sum()) > plays * slots:
        raise malformed(
            f"visits may grow by at most one observation of an arm and {plays} in all in each of "
            f"{slots} slots, got {int(observed.max())} and {int(observed.sum())}"
        )
    if always:
        paired = (upload.counts - before.counts)[..., list(always)].sum((0, 1, 2))
        if int(paired.max()) > slots:
            raise malformed(
                f"counts of an arm that is always observed may grow by at most one pair in each of "
                f"{slots} slots, got {int(paired.max())}"
            )


class Credit(NamedTuple):
    """Playing time for which the agents of an owner may still claim slots.

    seconds: remaining time; at: its date, in seconds of the server's clock.
    """

    seconds: float
    at: float

    @classmethod
    def first(cls, since: float, slots: int, now: float, slot_seconds: float) -> Credit:
        """Return the credit of an owner without a stored credit, at least 0.

        since: when its first agent was enrolled; slots: that its agents have reported.
        """
        burst = _burst_seconds(slot_seconds)
        seconds = burst + max(0.0, now - since) - slots * slot_seconds
        return cls(min(_most_seconds(slot_seconds), max(0.0, seconds)), now)

    def filled(self, now: float, slot_seconds: float, names: int = 1) -> Credit:
        """Return the credit at a later time; by a clock that was set back nothing is added.

        names: agents of the owner, each of which plays.
        """
        seconds = self.seconds + max(0.0, now - self.at) * max(1, names)
        return Credit(min(_most_seconds(slot_seconds), seconds), now)

    def slots(self, slot_seconds: float) -> int:
        """Return the number of slots covered by the credit."""
        return int(self.seconds / slot_seconds * (1 + 1e-12) + 1e-6)

    def spent(self, slots: int, slot_seconds: float) -> Credit:
        """Return the remaining credit after `slots`."""
        return self._replace(seconds=max(0.0, self.seconds - slots * slot_seconds))


def _burst_seconds(slot_seconds: float) -> float:
    return max(_BURST_SLOTS * slot_seconds, _BURST_SECONDS)


def _most_seconds(slot_seconds: float) -> float:
    return max(CREDIT_SECONDS, _burst_seconds(slot_seconds))


def check_pace(slots: int, before: int, credit: Credit, slot_seconds: float, names: int) -> None:
    """Refuse slots that time does not allow.

    Credit is a bucket of time: it fills as time passes, by as much for each agent of the owner,
    and holds a day (`CREDIT_SECONDS`), or the first burst if that is more: `_BURST_SLOTS` slots, or
    those of `_BURST_SECONDS`. An agent that was offline for longer sends what it has counted in
    parts, as credit comes.

    Parameters
    ----------
    slots, before
        Slots of all incarnations of the agent, with this upload and without it.
    credit
        Credit of the agent's owner now.
    slot_seconds
        Length of the shortest slot.
    names
        Number of agents of the owner.
    """
    allowed = credit.slots(slot_seconds)
    if slots - before > allowed:
        missing = (slots - before) * slot_seconds - credit.seconds
        raise ProtocolError(
            429,
            "slots",
            f"slots of all incarnations must be at most {before + allowed} so far, as slot_seconds "
            f"is {slot_seconds:g} and at most a day of it is held as credit, got {slots}",
            retry_after=max(1, min(math.ceil(missing / max(1, names)), _LONGEST_PAUSE)),
            slots=allowed,
        )


def backwards(detail: str) -> ProtocolError:
    """Return the error for an upload that takes counts back."""
    return ProtocolError(409, "backwards", detail)


def all_integers(value: Any, shape: tuple[int, ...]) -> npt.NDArray[np.int64] | None:
    """Read as `integers` does, faster; None where that may refuse.

    The value must have no true, no false and no string in it: NumPy takes the first two for
    numbers, and gives every entry the room of the longest string.
    """
    try:
        found = np.array(value)
    except (ValueError, OverflowError):
        return None
    if found.dtype != _INT64 or found.shape != shape:
        return None
    # A negative number is a large one without its sign.
    return found if int(found.view(np.uint64).max()) <= MAX_WHOLE else None


def integers(place: str, value: Any, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Read nested lists of whole numbers of exactly this shape."""
    flat: list[Any] = [value]
    for depth, length in enumerate(shape):
        deeper: list[Any] = []
        for part in flat:
            if type(part) is not list or len(part) != length:
                dims = " x ".join(map(str, shape))
                raise malformed(
                    f"{place} must be nested lists of {dims}: level {depth + 1} has "
                    f"{len(part) if isinstance(part, list) else shown(part)}"
                )
            deeper += part
        flat = deeper
    for number, entry in enumerate(flat):
        if type(entry) is not int or not 0 <= entry <= MAX_WHOLE:
            where = "".join(f"[{i}]" for i in np.unravel_index(number, shape))
            raise malformed(
                f"{place}{where} must be a whole number from 0 to 2^53, got {shown(entry)}"
            )
    return np.array(flat, np.int64).reshape(shape)
