"""Migration of a realm (a tenant of a store) to another database while processes continue to commit."""
