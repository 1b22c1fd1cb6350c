"""Records of a store in the reserved realm `::system::` (its format, realms, node leases, clock and tasks), and the
registries of references of its realms."""
