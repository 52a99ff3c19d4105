"""Clusters for the tests."""

from contextlib import ExitStack
from functools import cache

import pytest

from tests.cluster.cluster import cluster
from tests.cluster.spec import make_spec


@pytest.fixture(scope="session")
def make():
    """Makes clusters that end with the session, of `make_spec`'s arguments; the same one for the same arguments."""
    with ExitStack() as stack:

        @cache
        def up(hosts, **options):
            return stack.enter_context(cluster(make_spec(hosts, **options)))

        yield up
