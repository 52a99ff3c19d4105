"""Programs that the cluster tests run over several hosts."""
