"""The endpoint picker: selects the replicas to which a gateway sends a request, in order.

The gateway sends the request itself, so no token of the answer passes through this process. `pick` is the
decision, `picker` reads a request for it. Two protocols call it: `ext_authz` over HTTP, and `ext_proc` over
gRPC, whose order of messages is a pure object, `conversation`. For an Envoy beside it, the picker maintains
the file of endpoints (`endpoints_file`) and drains it (`envoy_drain`).
"""
