"""The HTTP transport of the REST protocol. It needs the libraries of the extra `server`."""

from polaris_spark.server.app import create_app
from polaris_spark.server.authentication import authenticators_by_realm, authenticators_in
from polaris_spark.server.catalogs import ServedCatalogs
from polaris_spark.server.listener import ConnectionBounds
from polaris_spark.server.logins import Authenticator, Login
from polaris_spark.server.realm_names import RealmNames
from polaris_spark.server.run import Endpoint, ManySettings, serve, serve_many
from polaris_spark.server.served_realms import Issuing
from polaris_spark.server.tokens import Tokens

__all__ = [
    "Authenticator",
    "ConnectionBounds",
    "Endpoint",
    "Issuing",
    "Login",
    "ManySettings",
    "RealmNames",
    "ServedCatalogs",
    "Tokens",
    "authenticators_by_realm",
    "authenticators_in",
    "create_app",
    "serve",
    "serve_many",
]
