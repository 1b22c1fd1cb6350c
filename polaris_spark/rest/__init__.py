"""The Iceberg REST protocol, which is the one internal contract: a plain function from request to response."""
