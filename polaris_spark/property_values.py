"""Values of properties and options, parsed from text: durations, sizes, numbers, flags and lists of names.

The arguments of each parser are the property's name, which is used only in error messages, and the text of its value.
"""

from __future__ import annotations

import ipaddress
import re

from polaris_spark.errors import InputError
from polaris_spark.secret_options import REFERENCE

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,6}", re.ASCII)
_WHOLE = re.compile(r"[0-9]{1,19}", re.ASCII)
_ROLE = re.compile(r"arn:[a-z-]{1,20}:iam::[0-9]{0,20}:role/[\w+=,.@/-]{1,512}", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|kB|KB|MB|GB|KiB|MiB|GiB)?", re.ASCII)
_MILLISECONDS = {"ms": 1, "s": 1_000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MOST_MS = 100_000 * 366 * 86_400_000
_MOST_BYTES = 2**60
_BYTES = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30
}  # fmt: skip  # reads better as one table


def nonempty_text(name: str, text: str) -> str:
    """Return the text unchanged. It must not be blank.

    Raises:
        InputError: the text is blank.
    """
    if not text.strip():
        raise InputError(f"the property {name!r} is empty; leave it out to use the default")
    return text


def count(name: str, text: str) -> int:
    """Return the text as an integer, which must be from 0 to 999999.

    Raises:
        InputError: the text is not an integer in this range.
    """
    if not _COUNT.fullmatch(text.strip()):
        raise InputError(f"the property {name!r} is {text!r}; it must be a whole number from 0 to 999999")
    return int(text)


def whole_number(name: str, text: str) -> int:
    """Return the text as an integer, which must be from 0 to 2^63 - 1.

    Raises:
        InputError: the text is not an integer in this range.
    """
    if not _WHOLE.fullmatch(text.strip()) or int(text) >= 2**63:
        raise InputError(
            f"the property {name!r} is {text[:40]!r}; it must be a whole number from 0 to 2^63 - 1"
        )
    return int(text)


def flag(name: str, text: str) -> bool:
    """Return True for the text `true` and False for the text `false`, in any letter case.

    Raises:
        InputError: the text is neither `true` nor `false`.
    """
    flags = {"true": True, "false": False}
    if text.strip().lower() not in flags:
        raise InputError(f"the property {name!r} is {text!r}; it must be true or false")
    return flags[text.strip().lower()]


def metadata_files(name: str, text: str) -> str:
    """Return the text unchanged. It must be `every-commit` or `never`.

    Raises:
        InputError: the text is neither `every-commit` nor `never`.
    """
    if text not in ("every-commit", "never"):
        raise InputError(f"the property {name!r} is {text!r}; it must be 'every-commit' or 'never'")
    return text


def duration_ms(name: str, text: str) -> int:
    """Parse a duration such as `30 min`, `3 d`, `1.5h` or `500ms`, and return it in milliseconds.

    Raises:
        InputError: the text is not a duration, or the duration is longer than 100,000 years.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"{name} is {text!r}; write a duration with its unit: ms, s, min, h or d, such as '30 min'"
        )
    found = float(match.group(1)) * _MILLISECONDS[match.group(2)]
    if found > _MOST_MS:
        raise InputError(f"{name} is {text[:40]!r}; it must not be longer than 100000 years")
    return int(found)


def role_arn(name: str, text: str) -> str:
    """Return the ARN of a role of AWS, without whitespace around it.

    Raises:
        InputError: the text is not the ARN of a role.
    """
    if not _ROLE.fullmatch(text.strip()):
        raise InputError(
            f"{name} is {text[:200]!r}; it must be the ARN of a role, such as arn:aws:iam::123456789012:role/name"
        )
    return text.strip()


def duration_text(ms: int) -> str:
    """Return a duration in milliseconds as text that `duration_ms` can parse, in the largest unit that gives a whole
    number: `3 h`, `90 min`, `1500 ms`."""
    unit, length = max(
        ((unit, length) for unit, length in _MILLISECONDS.items() if ms % length == 0 and ms),
        key=lambda one: one[1],
        default=("ms", 1),
    )
    return f"{ms // length} {unit}"


def size_bytes(name: str, text: str) -> int:
    """Parse a size such as `128 MiB` or `1000000`, and return it in bytes.

    Raises:
        InputError: the text is not a size, or the size is more than 2^60 bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{name} is {text!r}; write a size such as '128 MiB', '64 kB' or a number of bytes")
    found = float(match.group(1)) * _BYTES[match.group(2) or "B"]
    if found > _MOST_BYTES:
        raise InputError(f"{name} is {text[:40]!r}; it must not be more than 2^60 bytes")
    return int(found)


def variable_names(name: str, text: str) -> tuple[str, ...]:
    """Parse names of environment variables that are separated by commas.

    Raises:
        InputError: a name is empty, or begins with `env:`.
    """
    names = tuple(one.strip() for one in text.split(","))
    if not all(names) or any(one.startswith(REFERENCE) for one in names):
        raise InputError(
            f"{name} is {text!r}; it must be a list of names of environment variables, separated by commas and without "
            f"the prefix {REFERENCE!r}"
        )
    return names


def is_loopback(host: str) -> bool:
    """Whether a host is `localhost` or a loopback address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
