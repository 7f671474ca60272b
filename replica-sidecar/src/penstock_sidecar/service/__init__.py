"""The gRPC service: its server, its certificate, its health, and the calls of `penstock.v1.Replica`."""
