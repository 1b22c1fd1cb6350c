"""What a store says of itself, in the reserved realm `::system::`: its format, its realms, its node
leases."""
