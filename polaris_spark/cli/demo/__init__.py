"""`polaris-spark demo`: a demonstration of the whole product on real data."""
