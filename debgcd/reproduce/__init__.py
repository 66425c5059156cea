"""Every table of the paper as a grid of runs, and its numbers beside ours.

- `experiments`: the runs of each table, from experiments.yaml; subsets of data sets
- `counts`: Tables 1 and 10, for which nothing is trained
- `grid`: resumable, one subprocess per run, spread over GPUs
- `table`: results beside the paper's numbers
- `run`: experiment name -> page
- `stream`: five stages of new categories, and each way of taking them in
- `agreement`: a training step on a device against the same on a CPU
- `bench`: `debgcd bench`: speed and memory
"""
