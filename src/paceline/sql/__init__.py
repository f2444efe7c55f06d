"""SQLite, PostgreSQL and Oracle, written once over SQLAlchemy Core."""
