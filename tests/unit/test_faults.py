"""The table of faults in CONTRIBUTING.md is that of the tests."""

from tests.faults import table


def test_the_table_is_that_of_the_tests() -> None:
    assert table.shown() == table.table()
