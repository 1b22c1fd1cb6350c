"""The HTTP transport of the REST protocol. It needs the libraries of the extra `server`."""

from polaris_spark.server.app import Issuing, create_app
from polaris_spark.server.authentication import authenticators_in
from polaris_spark.server.catalogs import ServedCatalogs
from polaris_spark.server.listener import ConnectionBounds
from polaris_spark.server.logins import Authenticator, Login
from polaris_spark.server.run import Endpoint, serve
from polaris_spark.server.tokens import Tokens

__all__ = [
    "Authenticator",
    "ConnectionBounds",
    "Endpoint",
    "Issuing",
    "Login",
    "ServedCatalogs",
    "Tokens",
    "authenticators_in",
    "create_app",
    "serve",
]
