"""When may this run? A capacity ledger of time windows."""
