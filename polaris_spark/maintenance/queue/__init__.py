"""The queue of a catalog: tasks, schedules and the history of runs, as rows."""
