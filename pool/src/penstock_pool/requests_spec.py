"""Allowed fields of clients' requests beyond the prompt and sampling parameters."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from penstock_pool.scalars import MediaHost
from penstock_pool.spec import Spec

ProxyField = Literal[
    "priority",
    "request_id",
    "rid",
    "kv_transfer_params",
    "ec_transfer_params",
    "data_parallel_rank",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
]
"""Fields of request bodies that affect the engine or other requests, and that only a proxy should set."""

PROXY_FIELDS: tuple[str, ...] = get_args(ProxyField)


class Requests(Spec):
    """Allowed contents of clients' requests. Others are answered 400."""

    allow_fields: Annotated[tuple[ProxyField, ...], Field(max_length=len(PROXY_FIELDS))] = Field(
        default=(),
        description="Fields for proxies that clients may set too: `priority` overtakes other requests, "
        "`request_id` and `rid` name a request, `kv_transfer_params`, `ec_transfer_params` and `bootstrap_*` "
        "make the engine connect to others, `data_parallel_rank` selects a part of it.",
        examples=[["priority"]],
    )
    media_hosts: Annotated[tuple[MediaHost, ...], Field(max_length=64)] = Field(
        default=(),
        description="Hosts from which the engine may fetch images, audio and video that a chat names by URL: "
        "names, `*.example.com` for all under one, `*` for any. Absent: none. `data:` URLs always pass.",
        examples=[["images.example.com"]],
    )
