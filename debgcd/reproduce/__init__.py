"""Every table of the paper as a grid of runs, and its numbers compared with ours."""
