"""`python -m mpishare`: the command line."""

from mpishare.cli import main

raise SystemExit(main())
