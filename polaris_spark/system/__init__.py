"""The records of a store, which are kept in the reserved realm `::system::` (format, realms, node leases, clock and
tasks), and the registry of references of each realm."""
