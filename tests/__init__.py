"""The tests of mpishare; `python -m tests.run` runs all of them."""
