"""Manifest lists, manifests and their entries: Iceberg's Avro files, which describe the files of a snapshot.

Begin with `manifest_entries.py`, which reads all entries of a snapshot as streams. `avro_files.py` and
`avro_blocks.py` decode files of any size in bounded memory; `manifest_lists.py` and `manifest_copies.py` also write.
"""
