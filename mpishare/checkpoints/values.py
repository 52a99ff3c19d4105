"""The small values of a checkpoint as JSON, and back. Nothing is pickled, so that no file can run code."""

from __future__ import annotations

import errno
import json
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from functools import partial
from pathlib import Path
from reprlib import repr as short
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.dtypes import describe, rebuild
from mpishare.arrays.spec import Spec
from mpishare.errors import SpecError

_TAG = "@mpishare"
"""The only name of a JSON object that stands for what JSON lacks: {"@mpishare": ["tuple", [1, 2]]}."""

_LARGEST_ARRAY_BYTES = 1 << 20
"""Each rank reads the values; of a larger array one copy per node is enough."""

_CURE = "Give numbers, strings, bytes, dates, zones of zoneinfo, arrays, NumPy's random generators, or lists or dicts."


def imported(module: str) -> ModuleType:
    """A module of types of items, by its name. A file imports none.

    Raises:
        OSError: This program has not imported it (ENOTSUP).
    """
    if module not in sys.modules:
        raise OSError(errno.ENOTSUP, f"it has items of module {module}. Import it on all ranks, and load again")
    return sys.modules[module]


def _parts_of_array(array: NDArray[Any] | np.generic) -> list[Any]:
    spec = Spec.of(array if isinstance(array, np.ndarray) else np.asarray(array))
    if spec.nbytes > _LARGEST_ARRAY_BYTES:
        raise SpecError(f"it has {spec.nbytes:,} bytes, of {_LARGEST_ARRAY_BYTES:,} at most. Save it among the arrays.")
    return [describe(spec.dtype), list(spec.shape), b64encode(array.tobytes()).decode()]


def _array(parts: tuple[Any, list[int], str]) -> NDArray[Any]:
    dtype, shape, data = parts
    return Spec(rebuild(dtype, imported), tuple(shape)).view(bytearray(b64decode(data)))


def _bit_generator(parts: tuple[dict[str, Any], np.random.SeedSequence | None]) -> np.random.BitGenerator:
    state, seed = parts
    made: np.random.BitGenerator = _KINDS[state["bit_generator"]][0](seed)
    made.state = state
    return made


def _random_state(state: dict[str, Any]) -> np.random.RandomState:
    made = np.random.RandomState(_KINDS[state["bit_generator"]][0]())
    made.set_state(state)
    return made


def _parts_of_time(value: datetime | time) -> dict[str, Any]:
    return {"text": value.replace(tzinfo=None).isoformat(), "fold": value.fold, "tzinfo": value.tzinfo}


def _time(kind: type[datetime | time], parts: Any) -> datetime | time:
    if isinstance(parts, str):  # as it was written before there were zones
        return kind.fromisoformat(parts)
    return kind.fromisoformat(parts.pop("text")).replace(**parts)


def _name_of_zone(zone: ZoneInfo) -> str:
    if zone.key is None:
        raise SpecError("a zone that was read from a file has no name. Give zoneinfo.ZoneInfo of a name.")
    return zone.key


_BIT_GENERATORS = (np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)

_KINDS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "dict": (dict, dict.items, dict),  # one whose keys JSON would change
    "tuple": (tuple, list, tuple),
    "set": (set, list, set),
    "frozenset": (frozenset, list, frozenset),
    "bytes": (bytes, lambda value: b64encode(value).decode(), b64decode),
    "complex": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "datetime": (datetime, _parts_of_time, partial(_time, datetime)),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, _parts_of_time, partial(_time, time)),
    "timedelta": (timedelta, lambda value: [value.days, value.seconds, value.microseconds], lambda it: timedelta(*it)),
    "timezone": (timezone, lambda value: value.__getinitargs__(), lambda parts: timezone(*parts)),
    "ZoneInfo": (ZoneInfo, _name_of_zone, ZoneInfo),
    "path": (type(Path()), str, Path),
    "array": (np.ndarray, _parts_of_array, _array),
    "scalar": (np.generic, _parts_of_array, lambda parts: _array(parts)[()]),
    "SeedSequence": (np.random.SeedSequence, lambda value: value.state, lambda state: np.random.SeedSequence(**state)),
    "Generator": (np.random.Generator, lambda value: value.bit_generator, np.random.Generator),
    "RandomState": (np.random.RandomState, lambda value: value.get_state(legacy=False), _random_state),
    **{kind.__name__: (kind, lambda value: [value.state, value.seed_seq], _bit_generator) for kind in _BIT_GENERATORS},
}
"""For the name in a tag: the class, what a value of it is made of, and how it is made again."""

_TAG_OF = {kind: tag for tag, (kind, _, _) in _KINDS.items()}

_BASES = (bytes, tuple, np.generic, np.ndarray)
"""Classes whose subclasses are saved as these. Those of others may have more than is saved: pandas.Timestamp."""


def dump(values: Mapping[str, Any] | None) -> str:
    """The values as JSON.

    Raises:
        SpecError: One of them cannot be saved. It is named as the caller would write it.
    """
    if not isinstance(values, Mapping | None) or not all(isinstance(name, str) for name in values or ()):
        raise SpecError(f"values cannot be saved: expected a dict of values by name, not {short(values)}.")
    try:
        return json.dumps({name: _plain(value, f"values[{name!r}]") for name, value in (values or {}).items()})
    except RecursionError as error:
        raise SpecError("values cannot be saved: they are nested too deep, or contain themselves.") from error
    except ValueError as error:  # of an integer of more than 4,300 digits
        raise SpecError(f"values cannot be saved: {error}.") from error


def _plain(value: Any, name: str) -> Any:
    """A value as JSON has it. `name` is for error messages."""
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, np.float64)):
        return value
    if isinstance(value, list):
        return [_plain(item, f"{name}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, dict):
        items = {key: _plain(item, f"{name}[{short(key)}]") for key, item in value.items()}
        if _TAG not in items and all(isinstance(key, str) for key in items):
            return items
        return {_TAG: ["dict", [[_plain(key, f"a key of {name}"), item] for key, item in items.items()]]}
    kind = next((base for base in _BASES if isinstance(value, base)), type(value))
    if kind not in _TAG_OF:
        raise SpecError(f"{name} is of {type(value)}, which cannot be saved. {_CURE}")
    tag = _TAG_OF[kind]
    try:
        parts = _KINDS[tag][1](value)
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from error
    return {_TAG: [tag, _plain(parts, name)]}


def load(text: str) -> dict[str, Any]:
    """The values that `dump` gave, made anew."""
    return dict(json.loads(text, object_hook=_made))


def _made(content: dict[str, Any]) -> Any:
    """What an object of JSON stands for."""
    if content.keys() != {_TAG}:
        return content
    tag, parts = content[_TAG]
    return _KINDS[tag][2](parts)
