"""Converts every error of one request to an answer with the request's id."""

from collections.abc import Callable
from types import TracebackType

from penstock_runtime.http_request import ClientGone, HttpRequest
from penstock_runtime.openai_errors import ApiError

from penstock_routing.request import request_head
from penstock_routing.response.error_headers import common_error_headers
from penstock_routing.response.upstream_error import UpstreamError


class ErrorAnswers:
    """Use as `async with` around the serving of one request. It raises only ApiError and ClientGone.

    fault: counts and logs an internal error, for which the client gets a 500.
    """

    __slots__ = ("_fault", "_http", "_request_id")

    def __init__(self, http: HttpRequest, request_id: str, fault: Callable[[], None]) -> None:
        self._http, self._request_id, self._fault = http, request_id, fault

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, ApiError):
            error.headers = (
                *error.headers,
                *common_error_headers(error.status, self._request_id, error.headers),
            )
        elif isinstance(error, UpstreamError):
            pairs = common_error_headers(error.status, self._request_id)
            headers = [(name.encode(), value.encode()) for name, value in pairs]
            await self._http.answer(error.body, error.status, headers=headers)
            return True
        elif isinstance(error, Exception) and not isinstance(error, ClientGone):
            self._fault()
            named = ((request_head.REQUEST_ID, self._request_id),)
            raise ApiError(500, "internal error", type="server_error", headers=named) from None
        return False
