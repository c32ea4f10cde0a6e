"""Uploads: read, and checked for being possible.

In `slots` slots with K plays each an agent's observations of an arm are one sequence of at most
one a slot. So, with p = counts summed over gaps and n the observations of an arm,

    observations of all arms <= K slots          n <= slots
    sum of p = n - 1, or 0 if n = 0              sum of gaps <= slots - 1, those above G as G + 1
    pairs from s = visits(s), less one for the state observed last
    pairs to s' = visits(s'), less one for the state observed first

The last two lines say that what enters and what leaves a state differ by at most one: for two
states, that pairs 0, 1 and pairs 1, 0 do. `rmab.protocol.growth` compares successive uploads.

Two kinds of arms have weaker rules, as a missing reading breaks their sequence in two. For an
action-dependent arm observed when played,

    pairs from s <= visits(s), pairs to s' <= visits(s')         sum of p <= n - 1, or 0 if n = 0

For an arm that is always observed, with p_0 the pairs with a play at the first,

    p_0 from s <= visits(s)              n + pairs without a play at the first <= slots
    sum of p <= slots - 1                |pairs from s - pairs to s| <= slots - sum of p
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

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
    "most_bytes",
    "parse_masked",
    "parse_upload",
]

_INT64 = np.dtype(np.int64)
_MAX_MATRIX_STATES = 4  # largest number of states for which sums are one product
_QUOTES = 2 * len(UPLOAD_KEYS) + 4  # quotes in an upload: keys, federation and incarnation


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
