"""Maintenance of realms: decides which rows and files may be deleted. Large work runs on executors."""
