"""Laws for agents that draw for themselves: what is sent comes back, nothing impossible does."""

import json

import numpy as np
import pytest

from rmab.errors import ProtocolError
from rmab.learning.channel.local_posterior import PosteriorSummaries
from rmab.privacy.prior_summaries import SummariesMessage, parse_summaries
from rmab.protocol.shape import Shape

SHAPE = Shape(1, (2, 2, 2), 8)
MEAN = np.array([[[0.5, -1, 100], [0, 2, -100]], [[1, 1, 1], [2, 2, 2]]])  # (laws, 2, arms)
COVARIANCE = np.array(
    [[[1, 2, 100], [0.5, -1, 0], [1, 3, 1e-11]], [[1, 1, 1], [0, 0, 0], [1, 1, 1]]]
)
MESSAGE = SummariesMessage(
    "radio",
    7,
    "whittle",
    8,
    (1.0, 0.5),
    0.1,
    ("all", "some"),
    PosteriorSummaries(MEAN[..., None], COVARIANCE[..., None]),
)


def test_what_is_sent_comes_back():
    found = parse_summaries(MESSAGE.to_json(), SHAPE)
    assert (found.federation, found.round, found.index, found.gaps) == ("radio", 7, "whittle", 8)
    assert (found.prior, found.doubt, found.names) == ((1.0, 0.5), 0.1, ("all", "some"))
    for got, sent in zip(found.summaries, MESSAGE.summaries, strict=True):
        np.testing.assert_allclose(got, sent, rtol=1e-6)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("gaps",), 0),
        (("doubt",), 1),
        (("doubt",), 1e-9),
        (("index",), "myopic"),
        (("round",), 1),
        (("laws",), json.loads(MESSAGE.to_json())["laws"] * 32),
        (("laws", 0, "covariance", 1), [2, 2.4, 3]),
    ],
)
def test_values_at_their_edges_are_read(path, value):
    parse_summaries(changed(path, value), SHAPE)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("protocol",), 2, "protocol must be 1, got 2"),
        (("federation",), "", "federation must be a name"),
        (("round",), 0, "round must be a whole number from 1"),
        (("index",), "gittins", "index must be one of whittle, myopic, got 'gittins'"),
        (("gaps",), 7, "gaps must be 0 or 8, as in the round, got 7"),
        (("gaps",), -1, "gaps must be a whole number from 0"),
        (("prior",), [1, 0], "prior must be two numbers above 0"),
        (("prior",), [0, 1], "prior must be two numbers above 0"),
        (("prior",), [1], "prior must be a list of 2"),
        (("doubt",), 0, "doubt must be a number above 0 and at most 1, got 0"),
        (("doubt",), 1.001, "doubt must be a number above 0 and at most 1"),
        (("doubt",), True, "doubt must be a number"),
        (("laws",), [], "laws must be a list of 1 to 64"),
        (("laws",), [{}] * 65, "laws must be a list of 1 to 64"),
        (("laws",), {}, "laws must be a list of 1 to 64"),
        (("laws", 1, "of"), 3, r"laws[1].of must be a name, got 3"),
        (("laws", 1, "mean"), [[0, 0]] * 2, "laws[1].mean must be a list of 3, got 2"),
        (("laws", 1, "mean", 2), [0, 0, 0], "laws[1].mean[2] must be a list of 2, got 3"),
        (("laws", 0, "mean", 2), [0, 100.1], "laws[0] must have numbers of at most 100 in size"),
        (("laws", 0, "mean", 2), [-100.1, 0], "laws[0] must have numbers of at most 100 in size"),
        (("laws", 0, "covariance", 0), [1, 0, 100.1], "numbers of at most 100 in size"),
        (("laws", 0, "covariance", 0), [100.1, 0, 1], "numbers of at most 100 in size"),
        (("laws", 0, "covariance", 1), [2, 2.5, 3], "laws[0].covariance must be positive definite"),
        (("laws", 0, "covariance", 1), [1, 1, 1], "laws[0].covariance must be positive definite"),
        (("laws", 1, "covariance", 1), [1, 0, 1e-13], "must be positive definite for every arm"),
        (("laws", 1, "covariance", 1), [-1, 0, -1], "must be positive definite for every arm"),
    ],
)
def test_what_cannot_be_is_refused(path, value, words):
    with pytest.raises(ProtocolError) as caught:
        parse_summaries(changed(path, value), SHAPE)
    assert (caught.value.status, words in str(caught.value)) == (422, True), str(caught.value)


def changed(path, value) -> bytes:
    """The message with another value in one place."""
    table = json.loads(MESSAGE.to_json())
    at = table
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(table).encode()
