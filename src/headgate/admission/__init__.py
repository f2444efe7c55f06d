"""May this run now? Plans, algorithms, decisions."""
