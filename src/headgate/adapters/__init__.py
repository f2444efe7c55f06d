"""The driven side: one folder per technology, each implementing the features' ports."""
