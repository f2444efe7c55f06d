"""The only place that names concrete adapters: URL scheme -> factory."""
