"""Recovery of a realm after its database lost rows: find what is left (`survey`, `search`), decide what to do (`plan`,
a pure function), and do it (`execution`)."""
