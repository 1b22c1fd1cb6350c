"""The two sides that are compared: this package, and Iceberg's Java classes in a process of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest

from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.renderer import render, render_view
from polaris_spark.catalog.metadata.requirements import check_all
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.metadata.table_creation import create_table
from polaris_spark.catalog.metadata.table_parser import parse_table
from polaris_spark.catalog.metadata.table_updates import apply_all
from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.catalog.metadata.view_parser import parse_view
from polaris_spark.catalog.metadata.view_updates import apply_view_updates, check_view
from polaris_spark.errors import RequestError
from tests.catalog.metadata.memory import MemoryObjects
from tests.differential.requests import Request

Json = dict[str, Any]

SHIM = Path(__file__).parents[2] / "jvm-shim"
DRIVER = SHIM / "src" / "test" / "java" / "io" / "polarisspark" / "MetadataDriver.java"
_BOUNDS = (0, 40, 200, 2048)
"""Bytes of refs, and of properties, that rows embed: in a sequence they move into indexes and back."""
UUID = "0d8c4a4e-6f0e-4f7e-9a43-3a3b3f3e1a11"
"""Of whatever comes without one."""


class Outcome(NamedTuple):
    """The outcome of a request on one side."""

    metadata: Json | None
    error: str
    """The error's type; empty if the request was accepted."""
    message: str


class Ours:
    """One table or view of this package, kept as rows in memory."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.objects = MemoryObjects()
        self.content: Table | View | None = None

    def metadata(self) -> Json:
        """The metadata that clients receive."""
        found: Json = json.loads(self.text())
        return found

    def text(self) -> bytes:
        """The metadata as JSON text."""
        if isinstance(self.content, View):
            return render_view(self.content, self.objects)
        assert isinstance(self.content, Table)
        return render(self.content, self.objects, snapshots="all")

    def answer(self, request: Request) -> Outcome:
        """Commit a request."""
        try:
            self._store(self._changed(request), request.where)
        except RequestError as error:
            return Outcome(None, error.type, str(error))
        return Outcome(self.metadata(), "", "")

    def _changed(self, request: Request) -> TableDraft | ViewDraft:
        if request.verb == "register":
            text = request.body["metadata"]
            parse = parse_table if self.kind == "table" else parse_view
            return parse(text, now_ms=request.now)
        if request.verb == "create":
            return create_table(
                request.body, uuid=UUID, location=request.body["location"], now_ms=request.now
            )
        if self.kind == "table":
            assert not isinstance(self.content, View)
            draft = TableDraft(self.content, self.objects, now_ms=request.now)
            draft.uuid = draft.uuid or UUID
            check_all(draft, request.requirements)
            apply_all(draft, request.updates)
            return draft
        assert not isinstance(self.content, Table)
        view = ViewDraft(self.content, self.objects, now_ms=request.now)
        for requirement in request.requirements:
            check_view(view, requirement)
        apply_view_updates(view, request.updates)
        return view

    def _store(self, draft: TableDraft | ViewDraft, where: str) -> None:
        if isinstance(draft, TableDraft):
            draft.overflow_bound = _BOUNDS[self.objects.last_id % len(_BOUNDS)]
        value, rows = draft.freeze(
            self.objects.new_id, metadata_location=where, entity_id=None if self.content else 7
        )
        self.objects.write(rows)
        self.content = self.objects.get(self.objects.put(value), type(value))


class Theirs:
    """Iceberg's classes in a process that reads requests and writes outcomes, in order."""

    def __init__(self, class_path: str) -> None:
        command = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path, str(DRIVER)]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        self._waiting: SimpleQueue[bytes | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def _write(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        while (text := self._waiting.get()) is not None:
            pipe.write(text)
            pipe.flush()
        pipe.close()

    def send(self, kind: str, requests: Sequence[Request]) -> None:
        """Send a sequence for a new table or view. Does not wait for the outcomes."""
        lines = [f"new\t{kind}"]
        for request in requests:
            lines += [f"now\t{request.now}", f"uuid\t{UUID}", *_lines(request)]
        self._waiting.put("\n".join([*lines, "flush\n"]).encode())

    def answer(self) -> Outcome:
        """Return the outcome of the oldest request whose outcome was not returned yet."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        fields = line.rstrip("\n").split("\t")
        if fields[0] == "ok":
            return Outcome(json.loads(fields[1]), "", "")
        assert fields[0] == "error", f"the driver ended: {line}{self._last_words()}"
        return Outcome(None, fields[1], fields[2])

    def _last_words(self) -> str:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-3_000:]

    def close(self) -> None:
        """End the process."""
        self._waiting.put(None)
        self._writer.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait()
        self._errors.close()


def _lines(request: Request) -> list[str]:
    if request.verb == "create":
        body = request.body
        pieces = (
            "" if body[name] is None else json.dumps(body[name]) for name in ("partition-spec", "write-order")
        )
        properties = [f"property\t{name}\t{value}" for name, value in body["properties"].items()]
        fields = [json.dumps(body["schema"]), *pieces, body["location"], request.where]
        return [*properties, "\t".join(["create", *fields])]
    if request.verb == "register":
        return ["\t".join(["register", request.body["metadata"], request.where])]
    requirements = [f"require\t{json.dumps(requirement)}" for requirement in request.requirements]
    updates = [f"update\t{json.dumps(update)}" for update in request.updates]
    return [*requirements, *updates, f"commit\t{request.where}"]


def class_path(folder: Path) -> str:
    """Where Java finds Iceberg, which Maven has loaded or loads now.

    Skips the test where there is no JDK or no Maven, unless POLARIS_SPARK_REQUIRE_SERVERS is set.
    """
    missing = [program for program in ("javac", "mvn") if shutil.which(program) is None]
    if missing:
        problem = f"comparing with Iceberg's Java classes needs {' and '.join(missing)} on the PATH"
        if os.environ.get("POLARIS_SPARK_REQUIRE_SERVERS"):
            pytest.fail(problem)
        pytest.skip(problem)
    shutil.copy(SHIM / "pom.xml", folder)
    file = folder / "class-path"
    command = ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={file}"]
    ran = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
    assert ran.returncode == 0, f"'{' '.join(command)}' failed:\n{ran.stdout[-5_000:]}{ran.stderr[-5_000:]}"
    return file.read_text().strip()
