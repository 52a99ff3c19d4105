"""Each fault injected for real; its outcome is a row of the table in docs/explanation/failures.md."""
