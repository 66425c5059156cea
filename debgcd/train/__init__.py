"""A run from its start to its end; `train` tells the story, `loop` is Algorithm 1.

- `train`: train, resume, evaluate again
- `plan`: everything that a configuration leaves open: start, pixels, steps, backbone, bank, first stage, K
- `cost`: seconds of a plan, and what each quality would cost
- `disk_space`: whether bank, checkpoints and model fit on their disks
- `setup`: network, method and tokens of a run; the features it starts from
- `loop`: Algorithm 1: one step, and the loop around it
- `callbacks`: beside the steps: log, evaluation, watch over health, checkpoints; a request to stop never cuts a step in two
- `checkpoint`: save, resume, keep the best
- `evaluation`: the network against the truth
- `finish`: the end: what is left of K, model/, evaluation.json, predictions.csv
- `continue_run`: training again from a reviewed run
"""
