"""gRPC beside HTTP: the server, and who may call it."""
