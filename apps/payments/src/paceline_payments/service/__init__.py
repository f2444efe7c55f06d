"""The payments application as a part of the service: settings, routes, commands, metrics, wiring."""
