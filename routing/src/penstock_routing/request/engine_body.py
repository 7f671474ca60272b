"""A client's body with the fields that its engine reads."""


def body_with(body: bytes, engine_fields: bytes) -> bytes:
    """Return a client's body with these `vllm_xargs`. JSON parsers use the last of two equal names."""
    return body.rstrip()[:-1] + b',"vllm_xargs":' + engine_fields + b"}"
