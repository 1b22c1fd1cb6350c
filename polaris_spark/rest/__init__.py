"""The Iceberg REST protocol: the one internal contract, answered by a plain function from request to response."""
