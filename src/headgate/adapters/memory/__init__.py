"""Stores that live in this process: real ones, and the model the others are tested against."""
