"""Each fault injected for real; its outcome is a row of the table in CONTRIBUTING.md."""
