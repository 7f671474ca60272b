"""The endpoint picker: says which replicas a gateway asks for a request, and in which order."""
