"""A scenario: branches, tags, merges, transactions and staging areas of one catalog."""
