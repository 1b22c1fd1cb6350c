"""The queue of a catalog: tasks, schedules and the history of runs, as rows. Workers (`jobs.worker`) run what is due."""
