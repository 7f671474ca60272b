"""What the processes say to one another. The `*_pb2*` files are generated, by `make proto`."""
