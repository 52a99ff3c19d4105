"""The table of faults in CONTRIBUTING.md tells of the tests that there are."""

from __future__ import annotations

from tests.faults.table import declared, shown


def test_the_table_has_each_fault_that_is_tested_and_no_other() -> None:
    assert shown() == declared()
    assert len(declared()) > 30
