"""Random layouts of stores, warehouses, tables, foreign folders and links: jobs delete only what a model allows."""

from __future__ import annotations

import os
import random
import shutil
import uuid
from pathlib import Path

import pytest

from tests.maintenance.hostile import JOBS, name_data_files, prepare, run, tree
from tests.maintenance.lakes import ROWS, Lake, age, name_statistics
from tests.sizes import long


class Layout:
    """A catalog with random surroundings, and a model of the files that may be deleted."""

    def __init__(self, folder: Path, job: str, rng: random.Random) -> None:
        self.folder = folder
        self.rng = rng
        self.job = job
        self.warehouse = folder / "warehouse"
        for name in ("warehouse/free/deep", "warehouse/disk", "foreign/deep", "far"):
            (folder / name).mkdir(parents=True)
        self.links = self._links()
        self.store = rng.choice(["c.db", "warehouse/c.db", "warehouse/free/c.db", "warehouse/hostile/c.db"])
        (folder / self.store).parent.mkdir(exist_ok=True)
        scheme = rng.choice(["sqlite", "sqlite", "file"])
        self.lake = Lake(f"{scheme}://{folder / self.store}", self.warehouse, grace="0s")
        prepare(job, self.lake)
        for name in (
            "foreign/f",
            "foreign/deep/f",
            "warehouse/free/f",
            "warehouse/free/deep/f",
            "warehouse/f",
        ):
            (folder / name).write_text("mine")
        self.live = [self._table("live", number) for number in range(2)]
        self.kept = {file for place in self.live for file in tree(place)}
        self.place = self._table("hostile", 0)

    def _links(self) -> list[Path]:
        """Make links in the warehouse: to the outside, to the inside, in chains, to files, to nothing."""
        targets = [
            "foreign",
            "foreign/f",
            "warehouse",
            "warehouse/free",
            "warehouse/disk",
            "warehouse/l0",
            "none",
            "..",
        ]
        targets += ["warehouse/db/live0", "warehouse/db/live0/data", "warehouse/c.db", "."]
        made = []
        for number in range(4):
            link = self.folder / self.rng.choice(["warehouse", "warehouse/free"]) / f"l{number}"
            link.symlink_to(self.folder / self.rng.choice(targets))
            made.append(link)
        return made

    def _table(self, name: str, number: int) -> Path:
        """Create a table. Returns it with the real path of its location."""
        places = [f"warehouse/db/{name}{number}", f"warehouse/db/{name}{number}", f"far/{name}{number}"]
        places += [f"{link.relative_to(self.folder)}/{name}{number}" for link in self.links]
        if name == "hostile":
            places += [str(link.relative_to(self.folder)) for link in self.links]
        self.rng.shuffle(places)
        for place in places:
            try:
                table = self.lake.catalog.create_table(
                    f"db.{name}{number}", ROWS.schema, location=f"file://{self.folder / place}"
                )
                table.append(ROWS)
            except Exception:  # the location is a broken link, or is taken: try another one
                self.lake.catalog.drop_table(f"db.{name}{number}") if self._is_there(name, number) else None
                continue
            self.named_place = self.folder / place
            return Path(os.path.realpath(self.folder / place))
        raise AssertionError("one place is always free")

    def _is_there(self, name: str, number: int) -> bool:
        return self.lake.catalog.table_exists(f"db.{name}{number}")

    def attack(self) -> None:
        """Make the hostile table name files of others, spelled in many ways."""
        victims = sorted(tree(self.folder))
        names = [self._spelled(self.rng.choice(victims)) for _ in range(60)]
        table = self.lake.catalog.load_table("db.hostile0")
        name_data_files(table, names)
        names.append(self._spelled(self.rng.choice(victims)))
        name_statistics(table.refresh(), names[-1])
        self.named = {os.path.realpath(self._path(one)) for one in names}
        for file in tree(self.folder):
            if not file.is_symlink():
                age(file, 10)

    def _path(self, location: str) -> str:
        return "/" + location.removeprefix("file:").removeprefix("//localhost").lstrip("/")

    def _spelled(self, file: Path) -> str:
        """A spelling of a file's location: through a link, with `..`, escapes or doubled slashes, or plain."""
        path = str(file)
        for link in self.rng.sample(self.links, len(self.links)):
            target = os.path.realpath(link)
            if path.startswith(f"{target}/") and self.rng.random() < 0.7:
                path = f"{link}{path[len(target) :]}"
                break
        way = self.rng.randrange(8)
        if way == 0:
            path = path.replace("/warehouse/", "/warehouse/free/../", 1)
        elif way == 1:
            path = path.replace("/", "//")
        elif way == 2:
            path = f"{path[:-1]}%{ord(path[-1]):02x}"
        elif way == 3:
            path = path.replace("/foreign/", "/warehouse/../foreign/", 1)
        elif way == 4:
            path = f"{self.warehouse}/.{'/..' * 12}{path}"
        return self.rng.choice(["file://", "file:", "file://localhost", ""]) + path

    def may_disappear(self, file: Path) -> bool:
        """Whether the job may delete a file that was there before."""
        real = Path(os.path.realpath(file))
        if file.is_symlink() or file in self.kept or self._is_of_store(real):
            return False
        roots = [self.warehouse]
        if not self.named_place.is_relative_to(self.warehouse):
            roots.append(self.named_place)
        if not any(real.is_relative_to(os.path.realpath(root)) for root in roots):
            if self.job != "remove_orphans":
                return False
            return any(real.is_relative_to(place) for place in self.live)
        if self.job == "remove_orphans":
            return True
        if any(real.is_relative_to(place) for place in self.live):
            return False
        return real.is_relative_to(self.place) or str(real) in self.named or self._is_checksum(real)

    def _is_of_store(self, real: Path) -> bool:
        store = self.folder / self.store
        return real.is_relative_to(store) or str(real).startswith(f"{store}-")

    def _is_checksum(self, real: Path) -> bool:
        return real.name.startswith(".") and real.name.endswith(".crc")


@pytest.mark.parametrize("rounds", [2, long(8)])
@pytest.mark.parametrize("job", JOBS)
def test_a_job_deletes_only_its_own_files_after_any_attack(tmp_path: Path, job: str, rounds: int) -> None:
    for number in range(rounds):
        seed = f"{job}-{number}" if rounds == 2 else uuid.uuid4().hex
        print("seed", seed)
        folder = tmp_path / str(number)
        folder.mkdir()
        layout = Layout(folder, job, random.Random(seed))
        layout.attack()
        before = tree(folder)
        allowed = {file for file in before if layout.may_disappear(file)}
        run(job, layout.lake, "db.hostile0")
        after = tree(folder)
        assert {str(file) for file in before - after - allowed} == set()
        for table in ("live0", "live1"):
            assert layout.lake.catalog.load_table(f"db.{table}").scan().to_arrow().num_rows == len(ROWS)
        layout.lake.close()
        shutil.rmtree(folder)
