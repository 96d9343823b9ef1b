"""What the tests of metrics share: data, Spark's environment and recomputed totals."""
