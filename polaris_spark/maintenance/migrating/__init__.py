"""Migration of a realm to another database while commits go on."""
