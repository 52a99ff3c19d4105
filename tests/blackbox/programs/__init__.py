"""Programs that the blackbox tests run under mpiexec."""
