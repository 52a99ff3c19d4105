"""Operations of reductions. The result of a reduction over one rank is what that rank gave."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

_handles = itertools.count(1)


class Op:
    """An operation, which may be called with two objects."""

    is_predefined = is_commutative = True

    def __init__(self, function: Callable[..., Any]) -> None:
        self.handle = next(_handles)
        self._function = function

    def __call__(self, x: Any, y: Any) -> Any:
        """The result of two objects."""
        return self._function(x, y)

    @classmethod
    def Create(cls, function: Callable[..., Any], commute: bool = False) -> Op:
        """An operation of the program's own, as mpi4py calls it."""
        created = cls(function)
        created.is_predefined, created.is_commutative = False, commute
        return created

    def Is_commutative(self) -> bool:
        """Whether the order does not matter."""
        return self.is_commutative

    def Is_predefined(self) -> bool:
        """Whether it is one of MPI's own."""
        return self.is_predefined

    def Free(self) -> None:
        """Does nothing."""


def _location(choose: Callable[[Any, Any], Any]) -> Op:
    """The pair with the largest or smallest value; of equal ones the lower location."""
    return Op(lambda x, y: min(x, y, key=operator.itemgetter(1)) if x[0] == y[0] else choose(x, y))


OP_NULL, REPLACE, NO_OP = Op(lambda *_: None), Op(lambda _, y: y), Op(lambda x, _: x)
SUM, PROD, MAX, MIN = Op(operator.add), Op(operator.mul), Op(max), Op(min)
MAXLOC, MINLOC = _location(max), _location(min)
LAND, LOR, LXOR = (Op(lambda x, y, f=f: f(bool(x), bool(y))) for f in (operator.and_, operator.or_, operator.xor))
BAND, BOR, BXOR = Op(operator.and_), Op(operator.or_), Op(operator.xor)
