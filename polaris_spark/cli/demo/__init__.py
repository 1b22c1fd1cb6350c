"""`polaris-spark demo`: the whole product on real data."""
