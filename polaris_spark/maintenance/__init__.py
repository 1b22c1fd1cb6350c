"""Maintenance of realms: decides what may be deleted. Large work is carried out on executors."""
