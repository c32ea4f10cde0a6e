"""Credit for slots in the store, the same on both databases: read once, kept with uploads."""

from rmab.service.store.pace import Pace

from rmab.protocol.uploads import CREDIT_SECONDS, Credit


def unasked():
    raise AssertionError("an owner with a row was asked for its first credit")


def test_an_owner_without_a_row_gets_its_first_credit_once(opened):
    pace = Pace(opened.database)
    assert pace.credit("acme", 10.0, 1.0, 1, lambda: Credit(5.0, 10.0)) == (5.0, 10.0)
    assert pace.credit("acme", 14.0, 1.0, 2, unasked) == (13.0, 14.0)
    assert pace.credit("other", 14.0, 1.0, 1, lambda: Credit(0.0, 14.0)) == (0.0, 14.0)
    assert opened.database.rows("SELECT owner FROM pace") == []
    pace.write()  # nothing was kept
    assert opened.database.rows("SELECT owner FROM pace") == []


def test_what_is_kept_is_written_once_and_read_by_the_next(opened):
    pace = Pace(opened.database)
    for owner, seconds in (("acme", 3.0), ("other", 4.0), ("acme", 7.0)):
        pace.keep(owner, Credit(seconds, 20.0))
    assert Pace(opened.database).credit("acme", 20.0, 1.0, 1, lambda: Credit(1.0, 20.0))[0] == 1.0
    with opened.transaction():
        pace.write()
    rows = "SELECT owner, seconds, at FROM pace ORDER BY owner"
    assert opened.database.rows(rows) == [("acme", 7.0, 20.0), ("other", 4.0, 20.0)]
    again = Pace(opened.database)
    assert again.credit("acme", 25.0, 1.0, 1, unasked) == (12.0, 25.0)
    assert again.credit("other", 1e9, 1.0, 1, unasked) == (CREDIT_SECONDS, 1e9)
    with opened.transaction():
        again.keep("acme", Credit(2.0, 30.0))
        again.write()
    opened.database.run("UPDATE pace SET seconds = 99 WHERE owner = 'acme'")
    with opened.transaction():
        again.write()  # it was written; nothing has changed since
    assert opened.database.rows(rows) == [("acme", 99.0, 30.0), ("other", 4.0, 20.0)]


def test_what_is_forgotten_is_read_again(opened):
    pace = Pace(opened.database)
    pace.keep("acme", Credit(3.0, 5.0))
    pace.forget()
    with opened.transaction():
        pace.write()
    assert pace.credit("acme", 5.0, 1.0, 1, lambda: Credit(8.0, 5.0)) == (8.0, 5.0)
