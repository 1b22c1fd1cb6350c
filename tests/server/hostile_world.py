"""A lake behind a server, and a client that tries to have files of others deleted.

Everything is below one folder. The catalog's store lies inside its own warehouse, where it is most at risk.
`World.guarded` is the model: files that no request and no job may delete or change. All other files may be deleted.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro

from polaris_spark.errors import PolarisError
from polaris_spark.jobs.registry import call
from polaris_spark.pyiceberg import PolarisCatalog
from polaris_spark.rest.opening import connect
from tests.maintenance.lakes import ROWS, age
from tests.maintenance.manifests import write_manifest
from tests.rest.client import Client, new_key, path, table, table_request, tables
from tests.server.servers import Server, client, options

Json = dict[str, Any]

_DATA_FILE = [
    {"name": "content", "type": "int", "field-id": 134},
    {"name": "file_path", "type": "string", "field-id": 100},
    {"name": "file_format", "type": "string", "field-id": 101},
    {"name": "record_count", "type": "long", "field-id": 103},
    {"name": "file_size_in_bytes", "type": "long", "field-id": 104},
]
_LISTED = [
    {"name": "manifest_path", "type": "string", "field-id": 500},
    {"name": "manifest_length", "type": "long", "field-id": 501},
    {"name": "partition_spec_id", "type": "int", "field-id": 502},
]
_OLD_DAYS = 10


class World:
    """One lake, its server, and a record of all actions on it."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder = folder
        self.rng = rng
        self.done: list[str] = []
        """Requests and jobs so far, with their results; the message of a failed test lists them."""
        self.acknowledged: set[str] = set()
        """Namespaces whose creation the server has acknowledged."""
        self.warehouse = folder / "warehouse"
        self.allowed = folder / "allowed"
        self.outside = folder / "outside"
        for each in (self.warehouse, self.allowed, self.outside, folder / "lake"):
            each.mkdir()
        self.store = f"sqlite://{self.warehouse / 'catalog.db'}"
        self.victims = [
            *self._victims(self.warehouse, catalog="polaris"),
            *self._victims(folder / "warehouse2", catalog="second"),
            *self._victims(folder / "warehouse3", realm="tenant"),
        ]
        canaries = [self.outside / name for name in ("a.parquet", "metadata/v1.metadata.json", "db/t/data/b")]
        canaries += [folder / "root.txt", folder / "lake" / "precious" / "x", folder / "warehouse2" / "stray"]
        for canary in canaries:
            canary.parent.mkdir(parents=True, exist_ok=True)
            canary.write_bytes(b"canary")
        self.store_files = [
            Path(f"{self.warehouse / 'catalog.db'}{suffix}") for suffix in ("", "-wal", "-shm")
        ]
        others = self._other_stores()
        self.guarded = {file: file.read_bytes() for file in (*canaries, *others, *self._victims_files())}
        for file in self.guarded:
            age(file, _OLD_DAYS)
        self._plant_links()
        self.server = self.serve()
        self.client: Client = client(self.server)
        self.namespace = "hostile"
        self.client.namespace(self.namespace)
        self.acknowledged.add(self.namespace)
        self.tables: list[str] = []

    def serve(self) -> Server:
        """A server of the catalog, which lets clients name one more folder."""
        return Server(self.store, *options(self.warehouse, "--allow-location", str(self.allowed)))

    def close(self) -> None:
        """End the server."""
        self.server.stop()
        self.server.process.kill()

    # What is there before

    def _victims(self, warehouse: Path, **where: str) -> list[tuple[dict[str, str], Path]]:
        properties = {"store": self.store, "warehouse": str(warehouse), **where}
        with PolarisCatalog("polaris", **properties) as catalog:
            catalog.create_namespace("victims")
            for name in ("one", "two"):
                made = catalog.create_table(f"victims.{name}", ROWS.schema)
                made.append(ROWS)
                made.append(ROWS)
        return [(properties, warehouse)]

    def _victims_files(self) -> list[Path]:
        return [file for _, home in self.victims for file in (home / "victims").rglob("*") if file.is_file()]

    def _other_stores(self) -> list[Path]:
        """The files of stores below the warehouse that neither the server nor the operator opens."""
        home = self.warehouse / "stores"
        home.mkdir()
        for scheme in ("sqlite", "file", "rocksdb"):
            connect(store=f"{scheme}://{home / scheme}", warehouse=str(self.folder / "lake")).close()
        return [file for file in home.rglob("*") if file.is_file()]

    def _plant_links(self) -> None:
        """Links that an earlier owner of the folders left there."""
        for link, target in (
            (self.warehouse / "up", self.folder),
            (self.warehouse / "out", self.outside),
            (self.warehouse / "self", Path("self")),
            (self.allowed / "up", Path("..")),
            (self.allowed / "chain", self.warehouse / "up"),
        ):
            link.symlink_to(target)

    # What a client may name

    def target(self) -> str:
        """The location of a file or folder that does not belong to the client, spelled in one of many ways."""
        rng = self.rng
        guarded = [*self.guarded, *(file.parent for file in self.guarded)]
        chosen = rng.choice(self.store_files if rng.random() < 0.3 else guarded)
        mine = sorted(one for home in self._homes() for one in home.iterdir())
        if mine and rng.random() < 0.2:  # a file that exists there after a link replaces a folder
            return f"file://{rng.choice(mine)}/{chosen.name}"
        return str(chosen) if rng.random() < 0.4 else self.spelled(chosen)

    def spelled(self, chosen: Path) -> str:
        """A path in one of the ways in which it can be written."""
        rng = self.rng
        text = str(chosen)
        inside = str(chosen.relative_to(self.folder)) if chosen != self.folder else "."
        text = rng.choice(
            [
                text,
                f"{self.warehouse}/up/{inside}",
                f"{self.allowed}/up/{inside}",
                f"{self.allowed}/chain/{inside}",
                f"{self.warehouse}/x/../../{inside}",
                f"{self.warehouse}/./../{inside}",
                text.replace("/", "//"),
                text.replace("a", "%61"),
                f"{self.warehouse}%2F..%2F{inside}",
                f"{self.warehouse}/out/../{inside}",
                text.upper(),
                text + "/",
                text + "?x#y",
            ]
        )
        return (
            rng.choice(["", "file:", "file://", "file:///", "FILE:", "file://localhost", "file:////"]) + text
        )

    def place(self) -> str:
        """A location for a table: in two of five cases one that the client may use."""
        rng = self.rng
        honest = f"{rng.choice([self.warehouse, self.allowed])}/{self.namespace}/t{rng.randrange(10**6)}"
        return rng.choice([honest, honest, self.target(), str(self.warehouse), str(self.allowed / "up")])

    def _homes(self) -> list[Path]:
        """The folders of the client's namespace."""
        homes = [place / self.namespace for place in (self.warehouse, self.allowed)]
        return [home for home in homes if home.is_dir()]

    # What a client does

    def step(self) -> None:
        """Send one request, or write a file, or set a link where the client may write."""
        action = self.rng.choice(
            [
                self.create,
                self.create,
                self.snapshot,
                self.snapshot,
                self.statistics,
                self.properties,
                self.move,
                self.register,
                self.drop,
                self.link,
                self.replace_folder,
                self.new_namespace,
            ]
        )
        action()

    def send(self, method: str, where: str, body: Any = None, **rest: Any) -> int:
        """The status of an answer."""
        answer = self.client.send(method, where, body, key=new_key(), **rest)
        self.done.append(f"{method} {where} {json.dumps(body)[:400]} {rest or ''} -> {answer.status}")
        assert answer.status < 500 or answer.status in (503, 504), "\n".join([*self.done, str(answer.body)])
        return answer.status

    def new_namespace(self) -> None:
        name = f"n{len(self.acknowledged)}"
        if self.send("POST", "v1/namespaces", {"namespace": [name]}) == 200:
            self.acknowledged.add(name)

    def create(self) -> None:
        name = f"t{len(self.done)}"
        request = table_request(name)
        if self.rng.random() < 0.7:
            request["location"] = self.place()
        if self.rng.random() < 0.3:
            key = self.rng.choice(["write.data.path", "write.metadata.path", "write.object-storage.path"])
            request["properties"] = {key: self.place()}
        if self.send("POST", tables(self.namespace), request) == 200:
            self.tables.append(name)

    def update(self, *updates: Json) -> int | None:
        """Commit updates to one of the client's tables."""
        if not self.tables:
            return None
        name = self.rng.choice(self.tables)
        body = {"requirements": [], "updates": list(updates)}
        return self.send("POST", table(name, (self.namespace,)), body)

    def snapshot(self) -> None:
        """Add a snapshot whose manifests name foreign files."""
        number = self.rng.randrange(1, 2**40)
        added = self.addition_of(number, self.rng.choice([self.manifest_list, self.target])())
        ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number}
        self.update(*([added, ref] if self.rng.random() < 0.7 else [added]))

    def addition_of(self, number: int, manifest_list: str) -> Json:
        """The update that adds a snapshot old enough to expire."""
        snapshot = {
            "snapshot-id": number,
            "timestamp-ms": int(time.time() * 1_000) - 20 * 86_400_000,
            "sequence-number": len(self.done) + 1,
            "manifest-list": manifest_list,
            "summary": {"operation": "append"},
            "schema-id": 0,
        }
        return {"action": "add-snapshot", "snapshot": snapshot}

    def manifest_list(self) -> str:
        """Write a manifest that names foreign files. Returns the location of a manifest list with this manifest."""
        mine = self.warehouse / self.namespace / f"m{len(self.done)}"
        mine.mkdir(parents=True, exist_ok=True)
        manifest, listed = mine / "m.avro", mine / "list.avro"
        write_manifest(
            manifest,
            _DATA_FILE,
            {
                "content": self.rng.choice([0, 1, 2]),
                "file_path": self.target(),
                "file_format": "PARQUET",
                "record_count": 1,
                "file_size_in_bytes": 1,
            },
        )
        named = self.rng.choice([str(manifest), str(manifest), self.target()])
        schema = {"type": "record", "name": "manifest_file", "fields": _LISTED}
        record = {"manifest_path": named, "manifest_length": manifest.stat().st_size, "partition_spec_id": 0}
        with listed.open("wb") as opened:
            fastavro.writer(opened, schema, [record])
        return f"file://{listed}"

    def statistics(self) -> None:
        """Add a snapshot with a foreign file as its statistics file."""
        number = self.rng.randrange(1, 2**40)
        added = self.addition_of(number, f"file://{self.warehouse}/none")
        named = {
            "snapshot-id": number,
            "statistics-path": self.target(),
            "file-size-in-bytes": 1,
            "file-footer-size-in-bytes": 1,
            "blob-metadata": [],
        }
        kind = self.rng.choice(["statistics", "partition-statistics"])
        if kind == "partition-statistics":
            named = {key: named[key] for key in ("snapshot-id", "statistics-path", "file-size-in-bytes")}
        setting = {"action": f"set-{kind}", kind: named}
        self.update(added, setting)

    def properties(self) -> None:
        key = self.rng.choice(["write.data.path", "write.metadata.path", "write.folder-storage.path"])
        self.update({"action": "set-properties", "updates": {key: self.place()}})

    def move(self) -> None:
        self.update({"action": "set-location", "location": self.place()})

    def register(self) -> None:
        """Register a metadata file of the client's whose location is a foreign folder."""
        location = self.target()
        metadata = {
            "format-version": 2,
            "table-uuid": f"5b9d7f1a-0000-4000-8000-{self.rng.randrange(16**12):012x}",
            "location": location,
            "last-sequence-number": 0,
            "last-updated-ms": 1,
            "last-column-id": 1,
            "current-schema-id": 0,
            "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "last-partition-id": 999,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {},
            "current-snapshot-id": -1,
            "refs": {},
            "snapshots": [],
            "snapshot-log": [],
            "metadata-log": [{"metadata-file": self.target(), "timestamp-ms": 1}],
        }
        name = f"r{len(self.done)}"
        file = self.allowed / name / "metadata" / "v1.metadata.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(metadata))
        named = self.rng.choice([f"file://{file}", f"file://{file}", self.target()])
        body = {"name": name, "metadata-location": named}
        if self.send("POST", f"{path(self.namespace)}/register", body) == 200:
            self.tables.append(name)

    def drop(self) -> None:
        if self.tables:
            name = self.tables.pop(self.rng.randrange(len(self.tables)))
            purge = {"purgeRequested": self.rng.choice(["true", "true", "false"])}
            self.send("DELETE", table(name, (self.namespace,)), query=purge)

    def link(self) -> None:
        """Set a link where the client may write: in the folder of its namespace."""
        home = self.rng.choice([self.warehouse, self.allowed]) / self.namespace
        home.mkdir(parents=True, exist_ok=True)
        known = [entry for entry in home.iterdir() if entry.is_dir() and not entry.is_symlink()]
        at = self.rng.choice([home, *known]) / f"link{len(self.done)}"
        target = self.rng.choice(
            [*self.guarded, *self.store_files, self.outside, self.folder, self.warehouse]
        )
        at.symlink_to(target)
        self.done.append(f"{at} -> {target}")

    def replace_folder(self) -> None:
        """Put a link in place of the folder of a table."""
        folders = [one for home in self._homes() for one in home.glob("t*")]
        known = sorted(one for one in folders if one.is_dir() and not one.is_symlink())
        if known:
            place = self.rng.choice(known)
            place.rename(place.with_name(f"aside{len(self.done)}"))
            target = self.rng.choice(
                [*sorted({file.parent for file in self.guarded}), self.outside, self.folder]
            )
            place.symlink_to(target)
            self.done.append(f"{place} -> {target}")

    # What the operator does

    def maintain(self) -> None:
        """Run every job that deletes files, with the most aggressive arguments."""
        jobs: list[tuple[str, Json]] = [
            ("expire", {"older_than": "1 min", "retain_last": 1}),
            ("purge_dropped", {}),
            ("remove_orphans", {"dry_run": False, "older_than": "2 d"}),
            ("trim", {}),
            ("sweep", {}),
        ]
        self.rng.shuffle(jobs)
        self.check()
        try:
            opened = connect(store=self.store, warehouse=str(self.warehouse), grace="1 ms")
        except PolarisError as error:
            raise AssertionError("\n".join([*self.done, f"the store is damaged: {error}"])) from error
        with opened as session:
            for job, arguments in jobs:
                try:
                    rows = call(session, job, **arguments)
                except PolarisError as error:
                    self.done.append(f"{job}: {error}")
                else:
                    self.done.append(f"{job}: {len(rows)} rows")
                self.check()

    def check(self) -> None:
        """Check that no guarded file is missing or changed."""
        lost = [file for file, content in self.guarded.items() if _content(file) != content]
        lost += [file for file in self.store_files[:1] if not file.exists()]
        assert not lost, "\n".join([*self.done, f"lost: {lost}"])

    def check_acknowledged(self) -> None:
        """Check that a new server has everything that the first one acknowledged."""
        self.close()
        self.server = self.serve()
        known = {name[0] for name in client(self.server).ok("GET", "v1/namespaces")["namespaces"]}
        assert self.acknowledged <= known, "\n".join([*self.done, f"lost: {self.acknowledged - known}"])


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def play(folder: Path, seed: str, *, steps: int, after: Callable[[World], None] = lambda _: None) -> World:
    """Let a client and the jobs do `steps` random actions, and check the model after each job.

    Raises:
        AssertionError: a guarded file is lost; the message lists the actions before.
    """
    folder.mkdir()
    world = World(Path(os.path.realpath(folder)), random.Random(seed))
    try:
        for number in range(steps):
            world.step()
            if number % 20 == 19:
                world.maintain()
        world.maintain()
        world.check_acknowledged()
        after(world)
    finally:
        world.close()
    return world
