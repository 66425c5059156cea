"""Every table of the paper as a grid of runs, and the paper's numbers beside ours."""
