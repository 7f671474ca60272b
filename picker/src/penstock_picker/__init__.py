"""The endpoint picker: selects the replicas to which a gateway sends a request, in order."""
