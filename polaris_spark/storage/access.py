"""The access to the storage of tables that a server gives its clients: credentials and signatures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from polaris_spark.catalog.entities.properties import STORAGE_ROLE
from polaris_spark.errors import ForbiddenError, UnsupportedOperationError
from polaris_spark.storage.prefixes import Prefix
from polaris_spark.storage.settings import Storage, Storages
from polaris_spark.storage.signing import SignRequest, checked, signed_headers
from polaris_spark.storage.vending import CredentialVendor, Rights, own_session


class StorageAccess:
    """Hands out credentials and signatures. Thread-safe."""

    def __init__(self, storages: Storages, now_ms: Callable[[], int]) -> None:
        """
        Args:
            now_ms: returns the time in milliseconds since 1970.
        """
        self._storages = storages
        self.vendor = CredentialVendor(now_ms)
        self._own: dict[Storage, Any] = {}
        self._guard = threading.Lock()

    def place_of(self, prefixes: Sequence[Prefix], chosen: str | None) -> tuple[Storage, str | None]:
        """Return the settings that apply to the prefixes, and the role to assume for access to them. The role is None
        if these settings name no role; `chosen` is then ignored.

        Args:
            chosen: the role that the catalog's properties name; None to use the role in the settings.
        Raises:
            UnsupportedOperationError: there are no settings for these prefixes, or they do not allow the role that the
                catalog chooses.
        """
        storage = self._storages.of(prefixes)
        if storage is None:
            raise UnsupportedOperationError(
                f"this server has no settings for the storage of {prefixes[0].location}"
            )
        if chosen is None or storage.role_arn is None:
            return storage, storage.role_arn
        if chosen != storage.role_arn and chosen not in storage.catalog_role_arns:
            raise UnsupportedOperationError(
                f"the catalog's property {STORAGE_ROLE} is {chosen!r}, which this server does not allow for "
                f"{prefixes[0].location}"
            )
        return storage, chosen

    def signed(
        self,
        request: SignRequest,
        storage: Storage,
        role: str | None,
        prefixes: Sequence[Prefix],
        rights: Rights,
        principal: str,
    ) -> dict[str, str]:
        """Check a request to S3, and return the headers that the client must add to it.

        If `role` is given, the signature is made with temporary credentials that are limited to the prefixes, so that
        S3 checks the request, too.

        Raises:
            BadRequestError: the request is malformed.
            ForbiddenError: this server does not sign such a request; the message says why.
            TryAgainError: temporary credentials cannot be obtained.
        """
        operation = checked(request, storage, prefixes)
        if operation.changes and rights != "write":
            raise ForbiddenError(
                "this request would write, but only reading is allowed: either this state of the table is in the past "
                "or a tag (open a branch to write), or the privilege TABLE_WRITE_DATA is missing"
            )
        return signed_headers(
            request, operation, storage.region, self._credentials(storage, role, prefixes, rights, principal)
        )

    def _credentials(
        self, storage: Storage, role: str | None, prefixes: Sequence[Prefix], rights: Rights, principal: str
    ) -> Any:
        from botocore.credentials import ReadOnlyCredentials

        if role is not None:
            made = self.vendor.credentials(storage, role, prefixes, rights, principal)
            return ReadOnlyCredentials(made.access_key, made.secret_key, made.token)
        with self._guard:
            if storage not in self._own:
                self._own[storage] = own_session(storage)
            found = self._own[storage].get_credentials()
        if found is None:
            raise UnsupportedOperationError(
                f"the server has no credentials for the storage of {prefixes[0].location}; set access-key-id and "
                "secret-access-key in its settings, or provide credentials in the server's environment"
            )
        return found.get_frozen_credentials()
