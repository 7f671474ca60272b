"""Messages between the processes.

`replica.proto` is between router and sidecar, `telemetry.proto` from engine to sidecar. `make proto`
generates the `*_pb2*` files, which are committed.
"""
