"""Session policies on a server of S3 that enforces the policies of IAM: what they allow, and what they do not.

versitygw has no AssumeRole, so the policy of a session is that of a user here. The same code of the server evaluates
both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from polaris_spark.storage.prefixes import prefix_of
from polaris_spark.storage.vending import Rights, policy_of
from polaris_spark.testing.server import ProcessServer
from tests.servers.versitygw import VersityGateway, program
from tests.stores import start

T = prefix_of("s3://lake/wh/db/t")
KEYS = {"ROOT_ACCESS_KEY": "root", "ROOT_SECRET_KEY": "root-secret"}


class Iam(ProcessServer):
    """The server of users and policies."""

    name = "versitygw iam"

    @property
    def socket(self) -> Path:
        return self.directory / "s"

    def command(self) -> Sequence[str]:
        users = self.directory / "iam"
        users.mkdir(exist_ok=True)
        own = [str(program()), "--port", f"127.0.0.1:{self.port}", "--quiet"]
        return [*own, "iam", "--dir", str(users), "--private-ports", str(self.socket)]

    def environment(self) -> dict[str, str]:
        return KEYS

    def uri(self, store: str, *, port: int | None = None) -> str:
        return f"http://127.0.0.1:{port or self.port}"


class Gateway(VersityGateway):
    """A server of S3 that asks the server of users."""

    iam: Iam

    def command(self) -> Sequence[str]:
        own = [str(program()), "--port", f"127.0.0.1:{self.port}", "--quiet"]
        return [*own, "--iam-standalone-endpoint", str(self.iam.socket), "posix", str(self._data)]

    def environment(self) -> dict[str, str]:
        return KEYS


def service(kind: str, endpoint: str, key: str, secret: str) -> Any:
    """A client of boto3."""
    session = boto3.Session(aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1")
    style = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
    return session.client(kind, endpoint_url=endpoint, config=style)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Iam, Gateway]]:
    with start(Iam) as iam:
        Gateway.iam = iam
        with start(Gateway) as gateway:
            gateway.make_bucket("lake")
            root = service("s3", gateway.endpoint, *KEYS.values())
            for key in ("wh/db/t/f", "wh/db/t2/f", "wh/db/other/f"):
                root.put_object(Bucket="lake", Key=key, Body=b"x")
            yield iam, gateway


def client_with(servers: tuple[Iam, Gateway], name: str, policy: str) -> Any:
    """A client of S3 whose only permissions are those of a policy."""
    iam, gateway = servers
    users = service("iam", iam.uri(""), *KEYS.values())
    users.create_user(UserName=name)
    users.put_user_policy(UserName=name, PolicyName="only", PolicyDocument=policy)
    made = users.create_access_key(UserName=name)["AccessKey"]
    return service("s3", gateway.endpoint, made["AccessKeyId"], made["SecretAccessKey"])


def allowed(s3: Any) -> set[str]:
    """The operations that a client may do. All others must be refused as such."""
    operations: dict[str, Any] = {
        "get": lambda: s3.get_object(Bucket="lake", Key="wh/db/t/f")["Body"].read(),
        "list": lambda: s3.list_objects_v2(Bucket="lake", Prefix="wh/db/t/"),
        "list below": lambda: s3.list_objects_v2(Bucket="lake", Prefix="wh/db/t/data"),
        "put": lambda: s3.put_object(Bucket="lake", Key="wh/db/t/new", Body=b"y"),
        "delete": lambda: s3.delete_object(Bucket="lake", Key="wh/db/t/new"),
        "get another": lambda: s3.get_object(Bucket="lake", Key="wh/db/other/f"),
        "get neighbor": lambda: s3.get_object(Bucket="lake", Key="wh/db/t2/f"),
        "list all": lambda: s3.list_objects_v2(Bucket="lake"),
        "list above": lambda: s3.list_objects_v2(Bucket="lake", Prefix="wh/db/"),
        "list neighbor": lambda: s3.list_objects_v2(Bucket="lake", Prefix="wh/db/t"),
        "put another": lambda: s3.put_object(Bucket="lake", Key="wh/db/other/new", Body=b"y"),
        "delete another": lambda: s3.delete_object(Bucket="lake", Key="wh/db/other/f"),
        "policy": lambda: s3.get_bucket_policy(Bucket="lake"),
    }
    answers = {name: answer_of(operation) for name, operation in operations.items()}
    assert set(answers.values()) <= {"done", "AccessDenied"}
    return {name for name, answer in answers.items() if answer == "done"}


def answer_of(operation: Callable[[], object]) -> str:
    """The code of the error of an operation, or `done`."""
    try:
        operation()
    except ClientError as error:
        code: str = error.response["Error"]["Code"]
        return code
    return "done"


READS = {"get", "list", "list below"}


@pytest.mark.parametrize(("rights", "expected"), [("read", READS), ("write", READS | {"put", "delete"})])
def test_a_policy_allows_the_prefix_of_a_table_and_nothing_else(
    servers: tuple[Iam, Gateway], rights: Rights, expected: set[str]
) -> None:
    assert allowed(client_with(servers, rights, policy_of([T], rights, "aws"))) == expected


def test_a_star_in_a_location_reaches_no_other_table(servers: tuple[Iam, Gateway]) -> None:
    policy = policy_of([prefix_of("s3://lake/wh/db/*")], "write", "aws")
    assert allowed(client_with(servers, "star", policy)) == set()
