"""Writes that Spark does not make, such as equality deletes, by Iceberg's Java API."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession


class Writer:
    """Writes to a table by Iceberg's Java API."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.jvm: Any = spark._jvm
        self.spark = spark
        self.name = name
        self.iceberg = self.jvm.org.apache.iceberg

    @property
    def table(self) -> Any:
        session: Any = self.spark._jsparkSession
        return self.iceberg.spark.Spark3Util.loadIcebergTable(session, self.name)

    def _record(self, struct: Any, values: dict[str, Any]) -> Any:
        """Return a record. All numbers have Java's type Long, because py4j converts small numbers to Integer."""
        jackson = self.jvm.com.fasterxml.jackson.databind
        long = jackson.DeserializationFeature.USE_LONG_FOR_INTS
        mapper = jackson.ObjectMapper().configure(long, True)
        found = mapper.readValue(json.dumps(values), self.jvm.java.lang.Class.forName("java.util.HashMap"))
        return self.iceberg.data.GenericRecord.create(struct).copy(found)

    def _place(self, partition: dict[str, Any]) -> Any:
        if not partition:
            return None
        place = self.iceberg.data.GenericRecord.create(self.table.spec().partitionType())
        for name, value in partition.items():
            place.setField(name, value)
        return place

    def _file(self, place: Any) -> Any:
        files = self.iceberg.io.OutputFileFactory.builderFor(self.table, 1, 1)
        made = files.format(self.iceberg.FileFormat.PARQUET).build()
        return made.newOutputFile(place) if place is None else made.newOutputFile(self.table.spec(), place)

    def _factory(self, columns: list[str]) -> Any:
        schema = self.table.schema()
        builder = getattr(self.iceberg.data, "GenericFileWriterFactory$Builder")(self.table)
        parquet = self.iceberg.FileFormat.PARQUET
        ids = self.spark.sparkContext._gateway.new_array(self.jvm.int, len(columns))
        for position, name in enumerate(columns):
            ids[position] = schema.findField(name).fieldId()
        builder = builder.dataFileFormat(parquet).deleteFileFormat(parquet).dataSchema(schema)
        if columns:
            builder = builder.equalityFieldIds(ids).equalityDeleteRowSchema(self.keys(columns))
        return builder.build()

    def keys(self, columns: list[str]) -> Any:
        return self.table.schema().select(self.jvm.java.util.ArrayList(columns))

    def deletes(self, keys: list[dict[str, Any]], **partition: Any) -> Any:
        """Write an equality delete file."""
        place = self._place(partition)
        writer = self._factory(list(keys[0])).newEqualityDeleteWriter(
            self._file(place), self.table.spec(), place
        )
        for key in keys:
            writer.write(self._record(self.keys(list(key)), key))
        writer.close()
        return writer.toDeleteFile()

    def data(self, values: list[dict[str, Any]], **partition: Any) -> Any:
        """Write a data file."""
        place = self._place(partition)
        writer = self._factory([]).newDataWriter(self._file(place), self.table.spec(), place)
        for one in values:
            writer.write(self._record(self.table.schema(), one))
        writer.close()
        return writer.toDataFile()

    def row_delta(self, deletes: list[Any], data: tuple[Any, ...] = ()) -> None:
        change = self.table.newRowDelta()
        for one in deletes:
            change.addDeletes(one)
        for one in data:
            change.addRows(one)
        change.commit()
