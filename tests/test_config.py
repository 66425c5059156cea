"""Configurations: what is refused and how it is said, presets, and the paper's tables as one line of YAML each."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from debgcd import config as configuration
from debgcd.config.schedules import Progress
from debgcd.config.schema import Config
from debgcd.data.sampler import Draws
from debgcd.errors import DataError, UsageError
from debgcd.methods import METHODS, create
from debgcd.methods.base import Batch, Sizes
from debgcd.methods.debgcd import DebGCDOptions
from debgcd.model.backbone import Backbone
from debgcd.model.network import Network
from debgcd.reproduce.grid import settings_digest

PAPER = configuration.compose("paper")


def given(text: str, config: Config | None = None) -> Config:
    """The configuration with this YAML on top."""
    return configuration.override(config or PAPER, yaml.safe_load(text), where="here")


def keys(config: Config) -> list[str]:
    """Every key of a configuration, dotted."""
    return list(configuration.leaves(configuration.to_dict(config)))


def value_of(config: Config, key: str) -> Any:
    value: Any = config if hasattr(config, key.split(".")[0]) else config.options
    for part in key.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("shedule: {epochs: 3}", "here: unknown key 'shedule' for method debgcd (did you mean 'schedule'?)"),
        ("schedule: {epoch: 3}", "here: unknown key 'schedule.epoch' (did you mean 'epochs'?)"),
        ("ablation: {auxilary: false}", "here: unknown key 'ablation.auxilary' (did you mean 'auxiliary'?)"),
        ("baseline: {xyzzy: 3}", "here: unknown key 'baseline.xyzzy' (allowed: supervised_weight, unlabelled_"),
        ("5: 3", "here: unknown key '5'"),
        ("on: 3", "here: unknown key 'True'"),  # YAML 1.1 reads a bare on as true, also where a key stands
    ],
)
def test_unknown_keys_are_refused_with_a_suggestion(text: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        given(text)
    assert str(error.value).startswith(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("k: ten", "here: k must be a whole number, not 'ten'"),
        ("k: 2.0", "here: k must be a whole number, not 2.0"),
        ("k: true", "here: k must be a whole number, not True"),
        ("seed: null", "here: seed must be a whole number, not None"),
        ("method: 3", "here: method must be text, not 3"),
        ("schedule: {lr: high}", "here: schedule.lr must be a number, not 'high'"),
        ("schedule: {lr: true}", "here: schedule.lr must be a number, not True"),
        ("schedule: {lr: [1]}", "here: schedule.lr must be a number, not [1]"),
        ("schedule: 5", "here: schedule is a section; give it keys, not 5"),
        ("schedule:", "here: schedule is a section; give it keys, not None"),
        ("ablation: {detector: 1}", "here: ablation.detector must be true or false, not 1"),
        ("ablation: {detector: 'yes'}", "here: ablation.detector must be true or false, not 'yes'"),
        (
            "baseline: {teacher_shape: square}",
            "here: baseline.teacher_shape must be one of cosine, linear, not 'square'",
        ),
        ("model_kept: [last]", "here: model_kept must be one of last, best-old, not ['last']"),
        ("debiased: {utilisation: 0.5}", "here: debiased.utilisation must be a list of [progress, share] pairs"),
        ("debiased: {utilisation: [[0, 0, 0]]}", "here: debiased.utilisation must be a list of [progress, share]"),
    ],
)
def test_wrong_types_are_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        given(text)
    assert str(error.value).startswith(says)


def test_a_number_beyond_floats_is_refused() -> None:
    for text in (f"schedule: {{lr: {10**400}}}", f"k: {10**400}"):
        with pytest.raises(UsageError, match=r"lr must be a number|k must be between"):
            given(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("k: 0", "here: k must be between 1 and 10000000, not 0"),
        ("views: {size: 7}", "here: views.size must be between 8 and 4096, not 7"),
        ("baseline: {supervised_weight: 1.01}", "here: baseline.supervised_weight must be between 0 and 1, not 1.01"),
        (
            "baseline: {student_temperature: 0}",
            "here: baseline.student_temperature must be between 0.0001 and 100, not 0.0",
        ),
        ("debiased: {threshold: 1.5}", "here: debiased.threshold must be between 0 and 1, not 1.5"),
        ("schedule: {batch: 0}", "here: schedule.batch must be between 1 and"),
        ("schedule: {epochs: -1}", "here: schedule.epochs must be between 0 and"),
        ("schedule: {lr: .nan}", "here: schedule.lr must be between 0 and 1000, not nan"),
        ("schedule: {lr: .inf}", "here: schedule.lr must be between 0 and 1000, not inf"),
        ("run: {workers: -1}", "here: run.workers must be between 0 and 1024, not -1"),
        ("debiased: {utilisation: [[0, 0], [1, 1.2]]}", "here: debiased.utilisation has the point [1, 1.2]"),
        ("debiased: {utilisation: [[.nan, 0]]}", "here: debiased.utilisation has the point [nan, 0]"),
        ("debiased: {utilisation: []}", "here: debiased.utilisation has no points"),
        ("views: {size: 224, resize: 223}", "here: views.size 224 is larger than views.resize 223"),
    ],
)
def test_values_out_of_range_are_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        given(text)
    assert str(error.value).startswith(says)


def test_every_number_has_a_range_so_that_nan_never_gets_in() -> None:
    hints = {key for key in keys(PAPER) if isinstance(value_of(PAPER, key), float)}
    assert len(hints) > 15
    for key in hints:
        section, name = key.split(".")
        with pytest.raises(UsageError, match="must be between"):
            given(f"{section}: {{{name}: .nan}}")


def test_optional_values_take_null_and_their_own_type() -> None:
    config = given("{k: 7, backbone: {tuned_blocks: 0}, schedule: {steps: 5}, debiased: {utilisation: [[0, 0]]}}")
    assert (config.k, config.backbone.tuned_blocks, config.schedule.steps) == (7, 0, 5)
    assert config.options.debiased.utilisation == ((0.0, 0.0),)
    back = "{k: null, backbone: {tuned_blocks: null}, schedule: {steps: null}, debiased: {utilisation: null}}"
    assert given(back, config) == PAPER


# What YAML 1.1 reads otherwise than one means it.


def test_5e_5_is_text_to_yaml_and_a_number_here() -> None:
    assert yaml.safe_load("5e-5") == "5e-5"
    assert given("schedule: {weight_decay: 5e-4}").schedule.weight_decay == 5e-4
    assert given("detector: {weight: 1}").options.detector.weight == 1.0
    assert type(given("detector: {weight: 1}").options.detector.weight) is float


@pytest.mark.parametrize(("word", "meant"), [("on", "on"), ("off", "off"), ("auto", "auto"), ("'off'", "off")])
def test_on_and_off_are_booleans_to_yaml_and_words_here(word: str, meant: str) -> None:
    assert given(f"views: {{bank: {word}}}").views.bank == meant


# --set KEY=VALUE


@pytest.mark.parametrize(
    ("text", "nested"),
    [
        ("k=12", {"k": 12}),
        ("detector.weight=0.1", {"detector": {"weight": 0.1}}),
        (" detector.weight =0.1", {"detector": {"weight": 0.1}}),
        ("views.bank=on", {"views": {"bank": True}}),
        ("schedule.steps=", {"schedule": {"steps": None}}),
        ("backbone.name=a=b", {"backbone": {"name": "a=b"}}),
        ("debiased.utilisation=[[0, 0], [1, .5]]", {"debiased": {"utilisation": [[0, 0], [1, 0.5]]}}),
        ("ablation={guidance: false}", {"ablation": {"guidance": False}}),
    ],
)
def test_assignment(text: str, nested: dict[str, Any]) -> None:
    assert configuration.assignment(text) == nested
    configuration.override(PAPER, nested, where=text)


@pytest.mark.parametrize("text", ["", "k", "=3", "  =3", "k=[1", "k={", "method=!!python/object:os.system {}"])
def test_assignments_that_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        configuration.assignment(text)


# Files and presets.


def test_presets_load_and_paper_is_the_defaults() -> None:
    assert {"paper", "released", "small"} <= set(configuration.names("preset"))
    assert configuration.compose("paper") == Config(preset="paper", options=DebGCDOptions())
    for name in configuration.names("preset"):
        assert configuration.compose(name).preset == name


def test_released_differs_from_paper_where_the_design_says_so_and_nowhere_else() -> None:
    paper, released = PAPER, configuration.compose("released")
    differ = {key: value_of(released, key) for key in keys(paper) if value_of(released, key) != value_of(paper, key)}
    assert differ == {
        "preset": "released",
        "model_kept": "best-old",
        "run.eval_every": 1,
        "schedule.by": "epoch",
        "baseline.teacher_shape": "linear",
        "detector.entropy_weight": 0.1,
        "detector.entropy_over": "mean",
        "detector.consistency_weight": 1.0,
        "debiased.consistency": False,
    }


def test_a_preset_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match=r"no preset 'papper' \(did you mean 'paper'\?\)$"):
        configuration.compose("papper")


def test_a_run_of_the_time_of_bia_is_read_if_that_was_off() -> None:
    """Runs wrote extras.bia_weight, an option that was removed."""
    config = configuration.compose("small")
    values = configuration.to_dict(config)
    assert configuration.from_dict({**values, "extras": {"bia_weight": 0.0, **values["extras"]}}, "x") == config
    with pytest.raises(UsageError, match=r"unknown key 'extras\.bia_weight'"):
        configuration.from_dict({**values, "extras": {"bia_weight": 0.004, **values["extras"]}}, "x")


def test_a_run_from_before_an_option_was_added_is_read_and_keeps_its_name() -> None:
    assert configuration.compose("small").answer == "settled"
    config = configuration.override(configuration.compose("small"), {"answer": "classifier"}, "test")
    values = configuration.to_dict(config)
    earlier = configuration.without(values, set(configuration.ADDED))
    assert earlier != values and configuration.from_dict(earlier, "x") == config
    rest = {key: value for key, value in earlier.items() if key not in ("run", "seed")}
    assert settings_digest(config) == hashlib.sha256(json.dumps([rest], sort_keys=True).encode()).hexdigest()[:8]
    other = configuration.override(config, {"schedule": {"lr_falls": [0.5]}}, "test")
    assert settings_digest(other) != settings_digest(config)
    assert configuration.from_dict(configuration.to_dict(other), "x") == other
    assert settings_digest(configuration.compose("small")) != settings_digest(config)
    with pytest.raises(UsageError, match=r"x: schedule is a section; give it keys, not 0"):
        configuration.from_dict({**earlier, "schedule": 0}, "x")
    with pytest.raises(UsageError, match=r"schedule\.lr_falls must be a list of numbers, not \[\[1, 2\]\]"):
        configuration.override(config, {"schedule": {"lr_falls": [[1, 2]]}}, "test")


@pytest.mark.parametrize(("tuned", "tail", "fine"), [(2, 2, True), (None, None, True), (2, None, True), (1, 2, False)])
def test_a_configuration_of_a_run_with_a_tail_of_its_own_length(
    tuned: int | None, tail: int | None, fine: bool
) -> None:
    """Runs wrote backbone.tail_blocks, which could be more than the tuned ones."""
    config = configuration.override(configuration.compose("paper"), {"backbone": {"tuned_blocks": tuned}}, "x")
    values = configuration.to_dict(config)
    values["backbone"]["tail_blocks"] = tail
    with nullcontext() if fine else pytest.raises(UsageError, match=r"unknown key 'backbone\.tail_blocks'"):
        assert configuration.from_dict(values, "x") == config


@pytest.mark.parametrize("name", configuration.names("preset"))
def test_what_is_dumped_loads_as_the_same(tmp_path: Path, name: str) -> None:
    unlike = "{k: 9, seed: 3, backbone: {name: 'é: [x'}, schedule: {weight_decay: 5e-5, lr: 1e-7}, run: {workers: 0}}"
    config = given(unlike, configuration.compose(name))
    (tmp_path / "config.yaml").write_text(configuration.dump(config), "utf-8")
    assert configuration.load(tmp_path / "config.yaml") == config
    listed = yaml.safe_load(configuration.dump(config))
    own = [field.name for field in dataclasses.fields(config.options)]
    names = [[field.name] if field.name != "options" else own for field in dataclasses.fields(Config)]
    assert list(listed) == list(itertools.chain(*names))  # complete, in the order of the fields


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    place = tmp_path / "c.yaml"
    with pytest.raises(UsageError, match=r"no configuration file .*c\.yaml"):
        configuration.read_yaml(place)
    for content, error, says in (
        (b"a: [", UsageError, "is not valid YAML"),
        (b"- 1\n- 2\n", UsageError, "must hold a mapping"),
        (b"!!python/object/apply:os.getcwd []", UsageError, "is not valid YAML"),
        (b"\xff\xfe\xff", DataError, "cannot be read"),
    ):
        place.write_bytes(content)
        with pytest.raises(error, match=says):
            configuration.read_yaml(place)
    place.write_bytes(b"")
    assert configuration.read_yaml(place) == {}
    with pytest.raises(DataError, match="cannot be read"):
        configuration.read_yaml(tmp_path)


def test_a_configuration_is_not_changed_by_an_override() -> None:
    given("{k: 3, schedule: {lr: 1}}", PAPER)
    assert configuration.compose("paper") == PAPER


# The paper's ablation table (columns: debiased learning, auxiliary classifier, semantic distribution learning,
# distribution guidance) and its loss table (columns: L_adl^s, L_adl^u). One line each.

ABLATIONS = {
    1: "ablation: {debiased: false, auxiliary: false, detector: false, guidance: false}",
    2: "ablation: {debiased: true, auxiliary: false, detector: false, guidance: false}",
    3: "ablation: {debiased: true, auxiliary: true, detector: false, guidance: false}",
    4: "ablation: {debiased: false, auxiliary: false, detector: true, guidance: false}",
    5: "ablation: {debiased: true, auxiliary: true, detector: true, guidance: false}",
    6: "ablation: {debiased: true, auxiliary: true, detector: true, guidance: true}",
}
LOSSES = {
    1: "method: simgcd",
    2: "ablation: {labelled: true, unlabelled: false}",
    3: "ablation: {labelled: false, unlabelled: true}",
    4: "ablation: {labelled: true, unlabelled: true}",
}
GCD = {"distillation", "mean_entropy", "supervised", "info_nce", "supervised_contrastive", "teacher_temperature"}
DETECTOR = {"detector_labelled", "detector_entropy"}


class Linear(Backbone):
    """A backbone of one tuned layer."""

    def __init__(self) -> None:
        super().__init__()
        self.width, self.tail_blocks, self.standardise = 6, 1, False
        self.tuned = nn.ModuleList([nn.Linear(12, 6)])

    def tail(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.tuned[0](tokens)


def composed(config: Config) -> tuple[set[str], set[str], bool]:
    """Heads and terms of the method that a configuration describes, and whether rows are marked as used."""
    generator = torch.Generator().manual_seed(0)
    config = configuration.override(config, {"k": 5, "heads": {"hidden": 4}}, "test")
    method = create(config, Sizes(6, 5, known=3, images=4))
    network = Network(Linear(), method.heads())
    for parameter in network.heads.parameters():
        nn.init.normal_(parameter, generator=generator)
    tokens, numbers = torch.randn(8, 12, generator=generator), np.arange(4)
    batch = Batch.of(tokens, Draws(numbers, numbers), np.array([0, 2, -1, -1]), "cpu")
    loss = method.loss(network, batch, Progress(1, 2, 1))
    loss.total.backward()
    assert loss.total.isfinite()
    assert all(parameter.grad is not None for parameter in network.parameters())  # no head is there for nothing
    return set(network.heads), set(loss.terms), loss.hard_label is not None


@pytest.mark.parametrize(
    ("row", "heads", "terms", "marks"),
    [
        (1, set(), set(), False),
        (2, set(), {"debiased_labelled", "debiased_unlabelled"}, True),
        (3, {"debiased"}, {"debiased_labelled", "debiased_unlabelled"}, True),
        (4, {"detector"}, DETECTOR, False),
        (5, {"debiased", "detector"}, {"debiased_labelled", "debiased_unlabelled", "certainty"} | DETECTOR, True),
        (6, {"debiased", "detector"}, {"debiased_labelled", "debiased_unlabelled", "certainty"} | DETECTOR, True),
    ],
)
def test_every_row_of_the_ablation_table_is_one_line(row: int, heads: set[str], terms: set[str], marks: bool) -> None:
    assert "\n" not in ABLATIONS[row]
    assert composed(given(ABLATIONS[row])) == ({"classifier", "projection"} | heads, GCD | terms, marks)


def test_the_last_row_is_the_method_itself() -> None:
    assert given(ABLATIONS[6]) == given(LOSSES[4]) == PAPER


@pytest.mark.parametrize(
    ("row", "heads", "terms", "marks"),
    [
        (1, set(), set(), False),
        (2, {"debiased", "detector"}, {"debiased_labelled"} | DETECTOR, True),
        (3, {"debiased", "detector"}, {"debiased_unlabelled", "certainty"} | DETECTOR, True),
        (4, {"debiased", "detector"}, {"debiased_labelled", "debiased_unlabelled", "certainty"} | DETECTOR, True),
    ],
)
def test_every_row_of_the_loss_table_is_one_line(row: int, heads: set[str], terms: set[str], marks: bool) -> None:
    assert "\n" not in LOSSES[row]
    assert composed(given(LOSSES[row])) == ({"classifier", "projection"} | heads, GCD | terms, marks)


def test_combinations_that_mean_nothing_are_refused() -> None:
    """Of the 16 settings of the four columns, those whose parts are there compose; the others say what is missing."""
    for debiased, auxiliary, detector, guidance in itertools.product([True, False], repeat=4):
        values = {"debiased": debiased, "auxiliary": auxiliary, "detector": detector, "guidance": guidance}
        if guidance and not (debiased and detector):
            expected = "ablation.guidance needs ablation.debiased and ablation.detector"
        elif auxiliary and not debiased:
            expected = "ablation.auxiliary needs ablation.debiased"
        else:
            composed(configuration.override(PAPER, {"ablation": values}, where="here"))
            continue
        with pytest.raises(UsageError, match=expected):
            configuration.override(PAPER, {"ablation": values}, where="here")


def test_the_detector_alone_is_one_line() -> None:
    """The first row of the paper's table of the detector's AUROC."""
    assert composed(given("method: detector")) == ({"classifier", "detector"}, DETECTOR, False)
    with pytest.raises(UsageError, match="nothing to train"):
        given("{method: detector, detector: {weight: 0}}")


def test_an_option_of_another_method_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"unknown key 'detector' for method simgcd \(an option of debgcd, detector\)"):
        given("{method: simgcd, detector: {weight: 1}}")
    with pytest.raises(UsageError, match=r"unknown key 'detektor' for method debgcd .did you mean 'detector'"):
        given("detektor: {weight: 1}")


def test_another_method_keeps_the_values_of_options_that_both_have() -> None:
    config = configuration.override(PAPER, {"baseline": {"entropy_weight": 3.0}, "heads": {"hidden": 7}}, "here")
    other = configuration.override(config, {"method": "simgcd"}, "here")
    assert (other.options.baseline.entropy_weight, other.options.heads.hidden) == (3.0, 7)
    assert configuration.override(other, {"method": "debgcd"}, "here") == config


def test_every_value_of_a_preset_or_overlay_is_an_option_of_some_method() -> None:
    """A preset is for all methods, so that one takes only what it has an option for; a typing error would go unseen."""
    known = set().union(*(keys(configuration.compose("paper", method=name)) for name in METHODS))
    for preset, method in itertools.product(configuration.names("preset"), METHODS):
        for benchmark in (None, *configuration.names("benchmark")):
            for layer in configuration.layers(preset, benchmark, method=method)[1]:
                assert set(configuration.leaves(layer.values)) <= known, layer.where
    for quality in configuration.names("quality"):
        assert set(configuration.leaves(configuration.layers("small", quality=quality)[1][1].values)) <= known, quality
