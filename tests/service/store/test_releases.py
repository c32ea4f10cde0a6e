"""What a server without a helper releases: noise that is kept, and the sum that is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rmab.privacy.noise import GRID
from rmab.privacy.settings import Privacy
from rmab.service.store import schema
from rmab.service.store.store import open_store
from tests.service.support.counting import Counting
from tests.service.support.storing import enrolled, enrolled_before, given, given_before


@pytest.fixture
def noisy(federation):
    return replace(federation, privacy=Privacy(epsilon=1.0))


@pytest.fixture
def store(database_url, noisy):
    opened = open_store(database_url, noisy)
    opened.claim()
    yield opened
    opened.close()


def count(store, federation, slots, name="alice"):
    """An agent that has played so many slots, and told of them; what it counted."""
    agent = Counting(federation.shape)
    upload = agent.upload(1, slots=slots)
    given(store, enrolled(store, name), upload)
    return upload


def released(store, z, round=1, now=5.0):
    with store.transaction():
        return store.releases.release(z, round, now)


def test_a_release_is_the_sum_with_its_noise_and_is_kept(store, noisy, database_url):
    uploads = [count(store, noisy, 9, name) for name in ("alice", "bob")]
    size = noisy.shape.size
    z = [GRID * (n % 7 - 3) for n in range(size)]
    assert store.releases.is_due()
    assert not store.merged().counts.any()  # nothing is told before
    assert released(store, z) == (1, 2, 18, 39)
    noise = np.moveaxis(np.reshape([n // GRID for n in z], (4, -1, 2, 2)), 0, -1)
    found = store.merged()
    assert np.array_equal(found.counts, sum(upload.counts for upload in uploads) + noise)
    assert not found.visits.any()
    assert found.agents == 2
    assert store.releases.group() == (1, 1, 5.0, 2, 18, "released", 18)
    again = open_store(database_url, noisy)
    try:
        assert np.array_equal(again.merged().counts, found.counts)
        assert again.releases is not None
        assert again.releases.ledger() == store.releases.ledger()
        assert again.releases.ledger().releases[0].noise == tuple(z)
    finally:
        again.close()


def test_what_is_not_due_is_not_released(store, noisy):
    z = [0] * noisy.shape.size
    assert not store.releases.is_due()
    assert released(store, z) is None
    count(store, noisy, 7)
    assert released(store, z) is None
    count(store, noisy, 9, "bob")  # 8 a member
    assert released(store, z) is not None
    count(store, noisy, 15, "carol")
    assert (released(store, z), store.releases.waiting_slots()) == (None, 15)
    assert store.releases.left() == 39
    count(store, noisy, 1, "dave")
    assert released(store, z) is not None
    assert (store.releases.left(), store.releases.waiting_slots()) == (38, 0)


def test_a_release_that_is_undone_has_not_happened(store, noisy):
    count(store, noisy, 9)

    def undone():
        with store.transaction():
            assert store.releases.release([GRID] * noisy.shape.size, 1, 5.0) is not None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        undone()
    assert store.releases.left() == 40
    assert store.releases.group() is None
    assert not store.merged().counts.any()


def test_databases_of_before_become_of_this_version(database_url, federation, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:6])
        opened = open_store(database_url, federation)
        enrolled_before(opened)
        upload = Counting(federation.shape).upload(1)
        given_before(opened, upload)
        opened.close()
    opened = open_store(database_url, federation)
    assert schema.version_of(opened.database) == len(schema.MIGRATIONS)
    assert opened.database.rows("SELECT COUNT(*) FROM releases") == [(0,)]
    assert np.array_equal(opened.merged().counts, upload.counts)
    assert opened.agents()[0].reward is not None
    opened.close()
