"""Wire shapes: each JSON document once, for requests, responses, OpenAPI and the command line's `--json`."""
