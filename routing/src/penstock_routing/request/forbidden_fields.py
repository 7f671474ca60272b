"""Fields and URLs that clients may not send in a body, because the engine would act on them.

An engine trusts its callers. Some fields are meant for a proxy: they set a request's id, give it priority, or
make the engine connect to another engine. And a chat may contain URLs of images, audio and video, which the
engine fetches from its own network.

Both are rejected unless the pool allows them. Every string of a message's parts except texts is checked for
URLs, so an unknown kind of part cannot bypass the check. URLs are matched strictly instead of parsed, so an
ambiguous one is rejected.
"""

import re
from typing import Any

import msgspec
from msgspec import Raw
from penstock_pool.requests_spec import PROXY_FIELDS, Requests
from penstock_runtime.openai_errors import ApiError

TEXTS = frozenset({"type", "text", "thinking", "refusal", "uuid", "filename"})
"""Strings of a part that are never fetched."""

_HAS_SCHEME = re.compile(r"[\x00-\x20]*+(?:[A-Za-z0-9+.\-][\x00-\x20]*+)++:")
"""The scheme of a URL, as lenient parsers accept it with white space anywhere in it."""

_DATA = re.compile(r"data:", re.IGNORECASE)
_WEB = re.compile(r"https?://([A-Za-z0-9.\-]+)(?::[0-9]{1,5})?(?:[/?#][\x21-\x5b\x5d-\x7e]*)?", re.IGNORECASE)


class _MessageContent(msgspec.Struct):
    content: Any = None


_messages = msgspec.json.Decoder(list[_MessageContent])


class ClientFields:
    """The fields and URLs that one pool allows."""

    def __init__(self, allowed: Requests) -> None:
        self._refused = tuple(name for name in PROXY_FIELDS if name not in allowed.allow_fields)
        self._hosts = frozenset(host for host in allowed.media_hosts if not host.startswith("*"))
        self._domains = tuple(host[1:] for host in allowed.media_hosts if host.startswith("*"))

    @property
    def refused(self) -> tuple[str, ...]:
        """Names of fields that clients may not set."""
        return self._refused

    def check_media(self, messages: Raw) -> None:
        """Raise ApiError (400) for a chat with a URL that the engine may not fetch."""
        for index, message in enumerate(_decoded(messages)):
            if type(message.content) is list:
                self._check_parts(index, message.content)

    def _check_parts(self, index: int, parts: list[Any]) -> None:
        for part_index, part in enumerate(parts):
            strings: list[str] = []
            _collect(part, strings)
            if not all(map(self._may_fetch, strings)):
                where = f"messages[{index}].content[{part_index}]"
                raise ApiError(
                    400,
                    f"'{where}' has a URL that this pool's engines may not fetch; use a data: URL",
                    param=where,
                    code="media_not_allowed",
                )

    def _may_fetch(self, url: str) -> bool:
        if _HAS_SCHEME.match(url) is None or _DATA.match(url):
            return True
        found = _WEB.fullmatch(url)
        if found is None:
            return False
        host = found[1].lower()
        return host in self._hosts or any(host.endswith(domain) for domain in self._domains)


def proxy_field(name: str) -> ApiError:
    """Return the error (400) of a field that only a proxy may set."""
    return ApiError(
        400,
        f"'{name}' may only be set by a proxy; this pool does not accept it from clients",
        param=name,
        code="unsupported_parameter",
    )


def _collect(value: Any, strings: list[str]) -> None:
    """Add every string in a part that may be a URL. A part that is a string itself is text."""
    if type(value) is dict:
        for name, inner in value.items():
            if type(inner) is not str:
                _collect(inner, strings)
            elif name not in TEXTS:
                strings.append(inner)
    elif type(value) is list:
        for inner in value:
            if type(inner) is str:
                strings.append(inner)
            else:
                _collect(inner, strings)


def _decoded(messages: Raw) -> list[_MessageContent]:
    """Return the messages; none if they are invalid, as replicas reject them. Raises ApiError (400)."""
    try:
        return _messages.decode(messages)
    except msgspec.ValidationError:
        return []
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(
            400, f"'messages' cannot be read: {error}", param="messages", code="invalid_value"
        ) from None
