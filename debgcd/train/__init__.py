"""A run from start to finish; begin to read at `train`.

- `train`: start, resume and re-evaluate a run, on all ranks
- `plan`: everything that a configuration leaves open: start, pixels, steps, backbone, bank, first stage, K
- `cost`: the seconds that a plan takes, and those of each quality
- `disk_space`: refuses a run whose bank, checkpoints and model do not fit on their disks
- `setup`: network, method and tokens of a run; the features it starts from
- `loop`: Algorithm 1: one step, and the loop around it
- `callbacks`: work beside the steps: log, evaluation, checkpoints, requests to stop
- `watch`: a callback that measures a run's health and warns, or goes back to the best state
- `checkpoint`: save and load the state of a run, and the best network
- `evaluation`: the scores of a network against the truth
- `finish`: the end of a run: unused categories, model/, evaluation.json, predictions.csv
- `three_answers`: what looks new at the end, and the voters by which later images are judged
- `continue_run`: training again from a reviewed run
"""
