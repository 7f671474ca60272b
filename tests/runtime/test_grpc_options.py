"""Both ends of a session agree on pings and sizes: a server hangs up on a client that pings too often."""

from penstock_runtime.grpc_options import CLIENT_OPTIONS, PING_S, SERVER_OPTIONS

CLIENT, SERVER = dict(CLIENT_OPTIONS), dict(SERVER_OPTIONS)


def test_a_server_accepts_pings_at_the_clients_rate() -> None:
    for name in ("min_recv_ping_interval_without_data_ms", "min_ping_interval_without_data_ms"):
        assert 2 * SERVER[f"grpc.http2.{name}"] == CLIENT["grpc.keepalive_time_ms"] == PING_S * 1000
    assert SERVER["grpc.keepalive_permit_without_calls"] == 1


def test_both_ends_detect_a_vanished_peer() -> None:
    for end in (CLIENT, SERVER):
        for wait in ("grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"):
            assert end["grpc.keepalive_time_ms"] + end[wait] == 15_000
        assert end["grpc.http2.max_pings_without_data"] == 0  # as many as it takes


def test_the_largest_message_of_one_end_is_accepted_by_the_other() -> None:
    for one, other in ((CLIENT, SERVER), (SERVER, CLIENT)):
        assert one["grpc.max_send_message_length"] <= other["grpc.max_receive_message_length"]


def test_a_taken_port_is_an_error_and_only_the_router_retries() -> None:
    assert SERVER["grpc.so_reuseport"] == 0
    assert CLIENT["grpc.enable_retries"] == 0
    assert CLIENT["grpc.use_local_subchannel_pool"] == 1
