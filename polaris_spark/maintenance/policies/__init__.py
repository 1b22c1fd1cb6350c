"""The policies of a catalog, as in Apache Polaris: rules for the catalog, its namespaces and tables."""
