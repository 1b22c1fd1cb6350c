"""How requests to a server of many realms name a realm: by a header, by the beginning of the path, or by the host."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.types import Scope

from polaris_spark.errors import BadRequestError, InputError
from polaris_spark.system.realms import MAX_REALM_BYTES

HEADER: Final = "Polaris-Realm"
"""Header that names the realm of a request, as in Apache Polaris."""

PREFIX: Final = b"/realms/"
"""Beginning of a path that names a realm: `/realms/NAME/v1/...`, with the name percent-encoded."""

_DOMAIN: Final = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)*", re.ASCII)
_LABEL: Final = re.compile(r"[a-z0-9_-]+", re.ASCII)


class RealmNames(NamedTuple):
    """How requests name a realm."""

    default: str | None = None
    """Realm of requests that name none; None to refuse them."""
    domain: str | None = None
    """Domain below which host names name a realm: with `catalog.example.com`, the host `sales.catalog.example.com`
    names the realm `sales`. None if host names mean nothing."""

    def check(self) -> None:
        """Check the settings.

        Raises:
            InputError: the domain is not a host name in lower case.
        """
        if self.domain is not None and not _DOMAIN.fullmatch(self.domain):
            raise InputError(
                f"--realm-domain is {self.domain!r}; it must be a domain in lower case, such as catalog.example.com"
            )

    def of(self, scope: Scope) -> tuple[str, Scope]:
        """Return the realm that a request names, and the request without the beginning of the path that names it.

        Raises:
            BadRequestError: the request names no realm and there is no default, the request names two realms, or a name
                is malformed.
        """
        request = Request(scope)
        given = request.headers.getlist(HEADER)
        if len(given) > 1:
            raise BadRequestError(f"the request has more than one header {HEADER}")
        found = {_text(one.strip(" \t").encode("latin-1")) for one in given}
        raw: bytes = scope["raw_path"]
        if raw.startswith(PREFIX):
            quoted, slash, rest = raw.removeprefix(PREFIX).partition(b"/")
            found.add(_text(unquote_to_bytes(quoted)))
            scope = {
                **scope,
                "raw_path": slash + rest,
                "path": unquote_to_bytes(slash + rest).decode("latin-1"),
            }
        label = self._label(request)
        if label is not None:
            found.add(label)
        if not found and self.default is not None:
            found.add(self.default)
        if len(found) > 1:
            raise BadRequestError(
                f"the request names different realms, by the header {HEADER}, the path or the host; name only one"
            )
        if not found:
            raise BadRequestError(
                f"this server serves many realms, and the request names none: send the header {HEADER}, or add "
                "/realms/NAME to the URI of the catalog"
            )
        return found.pop(), scope

    def _label(self, request: Request) -> str | None:
        hosts = request.headers.getlist("host")
        if len(hosts) > 1:  # RFC 9112, section 3.2
            raise BadRequestError("the request has more than one header Host")
        if self.domain is None or not hosts:
            return None
        host = re.sub(r":[0-9]*$", "", hosts[0].lower()).removesuffix(".")
        label, dot, domain = host.partition(".")
        return label if dot and domain == self.domain and _LABEL.fullmatch(label) else None


def _text(name: bytes) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise BadRequestError("the name of the realm is empty or not UTF-8")
    # The server remembers names for a short time, so it cuts them. No realm has a name of this length.
    return text[: MAX_REALM_BYTES + 1]
