"""Clusters for the tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.cluster.cluster import Cluster, cluster
from tests.cluster.spec import make_spec

Make = Callable[..., Cluster]


@pytest.fixture(scope="session")
def make() -> Iterator[Make]:
    """Makes clusters that end with the session, of `make_spec`'s arguments; the same one for the same arguments."""
    with ExitStack() as stack:

        @cache
        def up(hosts: int, **options: object) -> Cluster:
            return stack.enter_context(cluster(make_spec(hosts, **options)))  # type: ignore[arg-type]

        yield up
