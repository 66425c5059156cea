"""A run from its start to its end; `start` tells the story, `loop` is Algorithm 1.

- `start`: begin, resume, evaluate again
- `decide`: what a configuration leaves open: pixels, steps, backbone, bank, K
- `quality`: pixels and steps where they are auto; what each quality costs in time
- `disk_space`: whether bank, checkpoints and model fit on their disks
- `setup`: network, method and tokens of a run; the features it starts from
- `loop`: Algorithm 1: one step, and the loop around it
- `callbacks`: beside the steps: log, evaluation, watch over health, checkpoints
- `checkpoint`: save, resume, keep the best
- `evaluation`: the network against the truth
- `finish`: the end: what is left of K, model/, evaluation.json, predictions.csv
- `stop`: requests to stop never cut a step in two
- `continue_run`: training again from a reviewed run
"""
