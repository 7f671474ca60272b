"""gRPC over HTTP/2 on the process's event loop: calls, their client, and their server.

The protocol is gRPC's, so any gRPC client or server can be the peer; HTTP/2's frames, states and windows are
h2's. Messages go from the socket to the receiver's function, and from the sender to the socket, within one
turn of the event loop, without threads, queues or tasks in between (ADR 0048).

    async with Channel("10.0.0.1:7000") as channel:
        reply = await channel.request(DESCRIBE, wire.DescribeRequest(), wire.DescribeReply)
        session = channel.open(SESSION)
        await session.write(wire.RouterFrame())
        await session.receive(wire.ReplicaFrame, deliver)

    async with grpc_serving({SESSION: serve_session}, listener):
        ...

Not supported: compression, metadata, and deadlines of clients, which cancel a call when it is too late.
"""
