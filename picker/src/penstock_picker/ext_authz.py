"""Envoy's `ext_authz` over HTTP: one request to the picker for each client request.

Envoy sends the client's method, path, headers and body. Status 200 lets the request pass with the headers
that the picker returns; those about limits go to the client with its answer. Any other status below 500 is
sent to the client with its body. Envoy treats 500 or more as a failure of the picker, so `failure_mode_allow`
decides whether the request passes.
"""

from penstock_routing.request import request_head
from penstock_routing.request.byte_budget import BodyBytes
from penstock_runtime.http_request import App, HttpRequest
from penstock_runtime.openai_errors import ApiError

from penstock_picker.picker import Call, Picker


def ext_authz_app(picker: Picker) -> App:
    """Return the application that answers Envoy's checks."""

    async def app(request: HttpRequest) -> None:
        with BodyBytes(picker.budget) as body_bytes:
            picked = await picker.pick(await _read(picker, request, body_bytes))
        headers = [(name.encode(), value.encode()) for name, value in picked.headers]
        await request.answer(b"", headers=[*headers, *picked.answer_headers])

    return app


async def _read(picker: Picker, request: HttpRequest, body_bytes: BodyBytes) -> Call:
    head = request_head.head_of(request.headers)
    try:
        body = await request.body(picker.max_body_bytes, picker.body_timeout_s, body_bytes.add)
    except ApiError as error:
        picker.refused(error, head)
        raise
    return Call(request.method, request.path, head, body)
