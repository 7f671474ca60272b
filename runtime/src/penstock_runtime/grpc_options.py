"""gRPC channel arguments of both ends of a session, which must agree.

Pings detect a peer that vanishes without closing its connection. By default, gRPC servers close connections
of clients that ping more often than every five minutes, so both sides' settings are in one place.
"""

PING_S = 10
"""Seconds without traffic after which a connection, also an idle one, is pinged."""

PONG_S = 5
"""Seconds within which a peer must answer a ping."""

MESSAGE_BYTES = 64 * 2**20
"""Largest message in bytes. An answer with log probabilities has tens of megabytes."""

Options = tuple[tuple[str, int], ...]

_BOTH: Options = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", PING_S * 1000),
    ("grpc.keepalive_timeout_ms", PONG_S * 1000),  # TCP timeout for unacknowledged bytes
    ("grpc.http2.ping_timeout_ms", PONG_S * 1000),  # timeout of HTTP/2 pings, by default a minute
    ("grpc.http2.max_pings_without_data", 0),
)

CLIENT_OPTIONS: Options = (
    *_BOTH,
    ("grpc.use_local_subchannel_pool", 1),  # each channel reconnects with its own backoff, not a shared one
    ("grpc.enable_retries", 0),
)

SERVER_OPTIONS: Options = (
    *_BOTH,
    ("grpc.so_reuseport", 0),  # a port in use is an error, not shared
    ("grpc.http2.min_ping_interval_without_data_ms", PING_S * 500),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", PING_S * 500),
    ("grpc.keepalive_permit_without_calls", 1),
)
