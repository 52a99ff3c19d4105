"""Pictures: sizes whose names would overprint have none."""

from benchmarks.picture import _spaced


def test_names_of_sizes_have_room_and_the_last_has_one():
    powers = (3, 6, 10, 13, 16, 20, 22, 24, 26, 28)
    assert _spaced([1 << power for power in powers]) == [1 << power for power in (28, 24, 20, 16, 13, 10, 6, 3)]
    assert _spaced([2, 4, 8]) == [8, 4, 2]
    assert _spaced([8, 4, 2]) == [2, 4, 8]
    assert _spaced([8]) == [8]
