"""The HTTP transport of the REST protocol. It needs the libraries of the extra `server`."""

from polaris_spark.server.app import create_app
from polaris_spark.server.catalogs import ServedCatalogs
from polaris_spark.server.listener import ConnectionBounds
from polaris_spark.server.run import Endpoint, serve
from polaris_spark.server.tokens import Tokens

__all__ = ["ConnectionBounds", "Endpoint", "ServedCatalogs", "Tokens", "create_app", "serve"]
