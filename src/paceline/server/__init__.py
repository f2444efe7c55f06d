"""The driving side: HTTP service, command line, console, workers."""
