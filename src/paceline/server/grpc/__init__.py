"""gRPC beside HTTP: the server, and its access control."""
