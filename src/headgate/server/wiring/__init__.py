"""Settings -> the parts that work together: a module per feature, the only place that joins them."""
