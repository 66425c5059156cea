"""The end of a run: drop unused categories, measure, write model/, evaluation.json and predictions.csv."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from debgcd.config.schedules import run_length
from debgcd.config.schema import Config
from debgcd.infer.infer import infer_shared
from debgcd.methods import create
from debgcd.model.heads import classifiers
from debgcd.novelty.base import DETECTOR, NoveltyThreshold, detector_of, exceeded_by_few
from debgcd.run.categories import categories
from debgcd.run.directory import Run
from debgcd.run.model_folder import save_model, views_label
from debgcd.run.predictions import Inference, prediction_table, to_csv
from debgcd.system import distributed
from debgcd.system.files import read_json, readable, write_json, write_text
from debgcd.system.progress import say
from debgcd.train.callbacks import Metrics
from debgcd.train.continue_run import read_before
from debgcd.train.evaluation import evaluate, infer_unlabelled
from debgcd.train.loop import hook_context, run_hook
from debgcd.train.setup import Setup
from debgcd.train.three_answers import judge


def prune(setup: Setup, config: Config, inference: Inference) -> Setup:
    """The setup without new categories that no unlabelled image is in; known classes stay.

    Categories that may be duplicates stay too: labels cannot tell them from neighbouring classes (docs/unknown_k.md).
    """
    images = np.bincount(inference.category, minlength=setup.method.sizes.k)
    used = [i for i in range(len(images)) if i < setup.known or images[i]]
    if len(used) == len(images):
        return setup
    say(f"categories: {len(used)} of {len(images)} are in use, the others are empty")
    for head in classifiers(setup.network.heads).values():
        head.keep(used)
    return with_categories(setup, config, len(used))


def with_categories(setup: Setup, config: Config, k: int) -> Setup:
    """The setup with its method set to k categories; the heads have k rows already."""
    sizes = setup.method.sizes
    return setup if k == sizes.k else replace(setup, method=create(replace(config, k=k), replace(sizes, k=k)))


def finish(run: Run, setup: Setup, hard_labels: Mapping[str, Any]) -> None:
    """End a run: fill the heads that no gradient trains, drop categories that are not in use, measure, write.

    hard_labels: the result of `fit`, logged with the last evaluation.
    """
    method = setup.method
    context = hook_context(run, setup, setup.label)
    if method.trains:
        context = replace(context, unlearned=torch.from_numpy(setup.held_out).to(setup.device))
    run_hook(context, method.finalise)
    k = len(classifiers(setup.network.heads)[method.final_answers[0]].prototypes())
    setup = with_categories(setup, run.config, k)
    inference = infer_unlabelled(setup)
    if run.config.prune:
        setup = prune(setup, run.config, inference)
        inference = infer_unlabelled(setup)
    scores = None
    if run.manifest.has_truth:
        scores = evaluate(run, setup, inference)
        steps = run_length(run.config.schedule, len(setup.label), method.trains).steps
        with Metrics(run, steps) as metrics:
            metrics.write(steps, {"evaluation": scores, **hard_labels})
    write_results(run, setup, inference, scores)


def write_results(run: Run, setup: Setup, inference: Inference, scores: dict[str, Any] | None) -> None:
    """Write the final files of a run; predictions.csv comes last, so a folder that has it has them all."""
    judged = judge(run, setup, inference, fit_novelty_threshold(setup))
    if judged is None:
        return
    k = setup.method.sizes.k  # smaller than the configuration's K if categories were dropped
    paths = [run.manifest.paths[row] for row in run.manifest.training_rows[setup.label < 0]]
    kept, before = categories(run.manifest.classes, k), read_before(run)
    if before is not None:
        kept = before.name(kept, paths, inference.category)
    labelled, config, state = int((setup.label >= 0).sum()), replace(run.config, k=k), setup.network.state()
    save_model(
        run.model,
        state,
        config,
        kept,
        len(setup.label),
        novel=judged.novel,
        labelled=labelled,
        scores=scores,
        so_far=judged.so_far,
    )
    if scores is not None:
        write_evaluation(run, scores, k)
    write_text(run.predictions, to_csv(prediction_table(paths, inference, kept, judged.novel, judged.none_p)))


def fit_novelty_threshold(setup: Setup) -> NoveltyThreshold | None:
    """The threshold of a calibrated detector, or the novelty that few labelled images exceed; None without a detector."""
    detector = detector_of(setup.network)
    calibrated = None if detector is None else detector.threshold()
    if calibrated is not None:
        return calibrated
    labelled = np.flatnonzero(setup.label >= 0)
    novelty = infer_shared(
        setup.network, setup.method, setup.tokens, labelled, {*setup.method.final_answers, DETECTOR}
    ).novelty
    return None if novelty is None else exceeded_by_few(novelty)


def write_evaluation(run: Run, scores: dict[str, Any], k: int) -> dict[str, Any]:
    """Write and return the content of evaluation.json. k: number of categories at the end of the run."""
    config = run.config
    facts = {"method": config.method, "seed": config.seed, "preset": config.preset, "backbone": config.backbone.name}
    written = {**facts, "views": views_label(config), "k": k, **scores, "health": read_health(run)}
    if distributed.rank() == 0:
        write_json(run.evaluation, written)
    return written


def read_health(run: Run) -> dict[str, Any] | None:
    """The content of health.json; None if the run was not watched, or if the file cannot be read."""
    try:
        health = read_json(run.health)
    except (OSError, ValueError):
        # a damaged file must not cost the results
        return None
    return health if isinstance(health, dict) and {"healthy", "problem", "kept_step"} <= set(health) else None


def read_evaluation(run: Run) -> dict[str, Any]:
    """The content of evaluation.json; a DataError if it is damaged."""
    with readable(run.evaluation, "write it again with debgcd evaluate"):
        evaluation = read_json(run.evaluation)
        if not isinstance(evaluation, dict):
            raise ValueError("it does not hold a JSON object")
    return evaluation
