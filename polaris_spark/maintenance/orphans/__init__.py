"""Files that nothing needs: found by listing, and what late purges left."""
