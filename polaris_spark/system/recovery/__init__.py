"""Recovery of a realm after its database lost rows: what is there (`survey`, `search`), what to do about it (`plan`,
which is pure), and doing it (`carrying_out`)."""
