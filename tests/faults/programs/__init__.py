"""Programs that the fault tests run."""
