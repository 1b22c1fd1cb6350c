"""The Iceberg REST protocol, as a plain function from request to response. Every client uses a catalog through this
function, over HTTP or in the same process."""
