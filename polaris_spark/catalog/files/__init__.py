"""Files and folders outside of the database: reading, writing and deleting them, and who may use which location.

Begin with `files.py`, which reads and writes files, and `locations.py`, the index of the locations that tables and
views own. `confinement.py` keeps local access within root folders. Files are deleted only by `folders.py`, with the
permission that `permits.py` describes. `ownership.py` decides which locations an imported table owns.
"""
