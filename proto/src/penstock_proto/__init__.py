"""Messages between the processes.

`replica.proto` is between router and sidecar, `telemetry.proto` from engine to sidecar. `make proto`
generates the `*_pb2*` files, which are committed. `engine_calls` is between an engine that gateways reach
and its sidecar; `sidecar_calls`, `report_socket` and `ticket_key` are the engine's ends. `sse` counts the
tokens of a streamed answer.
"""
