"""Preset + quality + method + benchmark + backbone: all compose, to the values of the paper and of the public scripts."""

from __future__ import annotations

import dataclasses
import json
import re
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from debgcd import config as configuration
from debgcd.cli import _parser, main
from debgcd.commands.arguments import BENCHMARKS, Source, configured
from debgcd.config.schema import Config
from debgcd.data.manifest import Manifest
from debgcd.datasets import NAMES, Benchmark, facts_of
from debgcd.errors import UsageError
from debgcd.methods import METHODS
from debgcd.model.load import DEFAULT
from debgcd.train.plan import first_stage

# τ, tuned blocks, ξ, λ_adl, λ_sdl, batch
PAPER = (0.85, 2, 1, 1.0, 0.01, 128)
VALUES: dict[str, dict[str, tuple[float, ...]]] = {
    "paper": dict.fromkeys(NAMES, PAPER)
    | {
        "cub": (0.85, 2, 2, 1.0, 0.01, 128),
        "cifar100": (0.85, 2, 4, 1.0, 0.01, 128),
        "imagenet1k": (0.85, 2, 1, 1.0, 0.01, 1024),  # SimGCD's 8 x 128
    },
    "released": {
        "cub": (0.65, 2, 2, 2.0, 0.005, 128),
        "cars": (0.70, 2, 1, 1.0, 0.005, 128),
        "aircraft": (0.85, 2, 1, 1.0, 0.01, 128),
        "cifar10": (0.90, 1, 1, 1.0, 0.01, 128),
        "cifar100": (0.55, 1, 4, 0.25, 0.001, 256),
        "imagenet100": (0.85, 1, 1, 1.0, 0.005, 128),
        "imagenet1k": (0.85, 2, 1, 1.0, 0.01, 1024),  # nothing was released for these three
        "pets": PAPER,
        "herbarium19": PAPER,
    },
    "small": dict.fromkeys(NAMES, (0.85, 2, 1, 1.0, 1.0, 128)),
}
# backbone, factor of the steps
QUALITIES = {"fast": ("lite0", 0.5), "balanced": ("lite0", 1.0), "best": (None, 2.0)}
NOT_RELEASED = {"imagenet1k", "pets", "herbarium19"}
# hub id, patch
BACKBONES = {"dino": ("facebook/dino-vitb16", 16), "dinov2": ("facebook/dinov2-with-registers-base", 14)}


def values(config: Config) -> tuple[float, ...]:
    blocks = config.backbone.tuned_blocks
    return (
        config.options.debiased.threshold,
        METHODS["debgcd"].cut.tuned if blocks is None else blocks,
        config.options.baseline.entropy_weight,
        config.options.debiased.weight,
        config.options.detector.weight,
        config.schedule.batch,
    )


def leaves(data: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in data.items():
        found |= leaves(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return found


def test_every_benchmark_has_an_overlay_and_every_preset_values_here() -> None:
    assert set(configuration.names("benchmark")) == set(NAMES) == set(BENCHMARKS.split(", "))
    assert set(configuration.names("preset")) == set(VALUES)
    assert set(configuration.names("backbone")) == set(BACKBONES)
    assert set(configuration.names("quality")) == set(QUALITIES)


@pytest.mark.parametrize(("preset", "benchmark"), [*product(VALUES, NAMES)])
def test_every_benchmark_over_every_preset(preset: str, benchmark: str) -> None:
    config = configuration.compose(preset, benchmark)
    assert values(config) == VALUES[preset][benchmark]
    assert config.schedule.lr == (0.03 if preset == "small" else 0.1)  # for a batch of 128: 0.2 for CIFAR-100's 256
    fallback = preset == "released" and benchmark in NOT_RELEASED
    assert config.preset == ("paper" if fallback else preset)
    assert config.views.upright == (preset == "small")  # the public loaders do not turn images
    base = configuration.compose(config.preset)
    rest = {"debiased", "backbone", "baseline", "detector", "schedule", "views"}
    other = configuration.to_dict(base)
    for name, value in configuration.to_dict(config).items():
        assert name in rest or value == other[name], name
    assert config.options.detector.entropy_over == base.options.detector.entropy_over
    assert config.options.baseline.teacher_shape == base.options.baseline.teacher_shape


SIMGCD = {"cub": 2, "cifar100": 4}  # ξ of its scripts; 1 elsewhere


@pytest.mark.parametrize(("preset", "benchmark"), [*product(("paper", "released"), NAMES)])
def test_simgcd_is_as_in_its_public_scripts(preset: str, benchmark: str) -> None:
    """Batch 128 also where DebGCD has 256, 8 x 128 on ImageNet-1K, a linear teacher by epoch, one block, the last epoch."""
    config = configuration.compose(preset, benchmark, method="simgcd")
    assert config.method == "simgcd" and config.preset == ("paper" if benchmark == "pets" else preset)
    assert config.schedule.batch == (1024 if benchmark == "imagenet1k" else 128)
    assert (config.schedule.lr, config.schedule.weight_decay, config.schedule.epochs) == (0.1, 5e-5, 200)
    assert (config.schedule.by, config.schedule.decay_all) == ("epoch", False)
    assert (config.options.baseline.teacher_shape, config.options.baseline.entropy_weight) == (
        "linear",
        SIMGCD.get(benchmark, 1),
    )
    assert config.backbone.tuned_blocks is None and METHODS["simgcd"].cut.tuned == 1
    assert config.model_kept == "last"


@pytest.mark.parametrize(("preset", "benchmark"), [*product(("paper", "released"), (None, *NAMES))])
def test_gcd_is_as_in_its_public_code(preset: str, benchmark: str | None) -> None:
    config = configuration.compose(preset, benchmark, method="gcd")
    assert (config.options.clustering.restarts, config.options.clustering.iterations) == (100, 200)
    assert (config.schedule.decay_all, config.schedule.by, config.schedule.weight_decay) == (True, "epoch", 5e-5)
    assert config.schedule.batch == (1024 if benchmark == "imagenet1k" else 128)  # it has no script for that set
    assert (
        config.options.heads.projection_prototypes,
        config.options.heads.hidden,
        config.options.heads.projection_width,
    ) == (
        65536,
        2048,
        256,
    )
    assert (config.model_kept, config.run.eval_every) == ("best-old", 1)
    assert METHODS["gcd"].cut.tuned == 1


@pytest.mark.parametrize(
    ("preset", "method", "benchmark", "backbone"), [*product(VALUES, METHODS, (None, *NAMES), (None, *BACKBONES))]
)
def test_all_of_them_compose(preset: str, method: str, benchmark: str | None, backbone: str | None) -> None:
    config = configuration.compose(preset, benchmark, backbone, method=method)
    assert config.method == method and config.preset in (preset, "paper")
    exact = config.preset != "small"
    assert (config.views.decode, config.run.precision) == (("exact", "fp32") if exact else ("fast", "auto"))
    found, layers = configuration.layers(preset, benchmark, backbone, method=method)
    reasons = configuration.reasons(config, layers)
    assert found == config.preset and set(reasons) == set(leaves(configuration.to_dict(config)))
    assert all(reasons.values())


@pytest.mark.parametrize(
    ("quality", "method", "benchmark", "backbone"), [*product(QUALITIES, METHODS, (None, "cub"), (None, *BACKBONES))]
)
def test_every_quality_composes(quality: str, method: str, benchmark: str | None, backbone: str | None) -> None:
    """It changes its own name, network and steps, and nothing else; a backbone that is named wins."""
    without = configuration.compose("small", benchmark, backbone, method=method)
    config = configuration.compose("small", benchmark, backbone, method=method, quality=quality)
    network, times = QUALITIES[quality]
    assert config.backbone.name == (network if backbone is None else BACKBONES[backbone][0])
    assert (config.quality, config.schedule.steps_times) == (quality, times)
    schedule = dataclasses.replace(config.schedule, steps_times=1.0)
    same = dataclasses.replace(config, quality="balanced", backbone=without.backbone, schedule=schedule)
    assert same == without
    layers = configuration.layers("small", benchmark, backbone, method=method, quality=quality)[1]
    assert configuration.reasons(config, layers)["quality"].endswith(f"[quality {quality}]")


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_published_values_have_no_quality(preset: str) -> None:
    assert configuration.compose(preset).quality is None
    with pytest.raises(UsageError, match=f"quality best is for the preset small, not for {preset}; omit it"):
        configuration.compose(preset, quality="best")


@pytest.mark.parametrize(("preset", "benchmark", "backbone"), [*product(VALUES, (None, *NAMES), BACKBONES)])
def test_every_backbone_over_them(preset: str, benchmark: str | None, backbone: str) -> None:
    """It changes network and views, and nothing else; a view is a whole number of patches."""
    without, config = configuration.compose(preset, benchmark), configuration.compose(preset, benchmark, backbone)
    name, patch = BACKBONES[backbone]
    assert config.backbone == dataclasses.replace(without.backbone, name=name)
    assert (config.views.size, config.views.resize) == (224, 256) and config.views.size % patch == 0
    views = dataclasses.replace(config.views, size=without.views.size, resize=without.views.resize)
    assert dataclasses.replace(config, backbone=without.backbone, views=views) == without


@pytest.mark.parametrize("name", ["lite0", "facebook/dino-vits16", "./dino", "weights/dino.pth", "dinov3"])
def test_any_other_backbone_changes_its_name_alone(name: str) -> None:
    without, config = configuration.compose("small", "cub"), configuration.compose("small", "cub", name)
    assert config == dataclasses.replace(without, backbone=dataclasses.replace(without.backbone, name=name))


def test_dino_is_the_default_where_a_hub_can_be_reached() -> None:
    assert configuration.compose("paper", backbone="dino").backbone.name == DEFAULT


@pytest.mark.parametrize("benchmark", NAMES)
def test_an_overlay_holds_only_what_differs(benchmark: str) -> None:
    file = resources.files("debgcd.config") / "overlays" / "benchmarks" / f"{benchmark}.yaml"
    sections = yaml.safe_load(file.read_text("utf-8"))
    assert set(sections) <= {"paper", "released"} and "paper" in sections
    assert {"every", "debgcd"}.isdisjoint(sections.get("released", {})) == (benchmark in NOT_RELEASED)
    for preset, section in sections.items():
        for method, own in section.items():
            base = configuration.compose(preset, method="debgcd" if method == "every" else method)
            values = leaves(configuration.to_dict(base))
            assert all(values[key] != value for key, value in leaves(own).items())


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("papper",), "there is no preset 'papper' (did you mean 'paper'?)"),
        (("xyz", "cub"), "there is no preset 'xyz' (allowed: paper, released, small)"),
        (("released", "cubs"), "there is no benchmark 'cubs' (did you mean 'cub'?)"),
        (("paper", "CUB"), "there is no benchmark 'CUB' (allowed: aircraft, cars,"),
        (("../presets/paper",), "there is no preset '../presets/paper'"),
    ],
)
def test_unknown_names_are_refused_with_a_suggestion(names: tuple[str | None, ...], says: str) -> None:
    with pytest.raises(UsageError) as error:
        configuration.compose(*names)  # type: ignore[arg-type]
    assert str(error.value).startswith(says)


# The command line. Nothing of the images is read to make a configuration whose preset is named.

EMPTY = Manifest((), (), (), (), ())


def asked(command: str, benchmark: str | None, *words: object) -> Config:
    """The configuration of `debgcd COMMAND --benchmark NAME ...`."""
    there = None if benchmark is None else Benchmark(facts_of(benchmark), Path("sets"), "published", EMPTY)
    options = _parser().parse_args([command, *map(str, words)])
    return configured(options, Source("name", Path("sets"), EMPTY, there))


@pytest.mark.parametrize("command", ["train", "check", "estimate-k"])
def test_commands_lay_the_overlay_before_what_the_user_says(command: str, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("{k: 7, debiased: {threshold: 0.6, weight: 3}}")
    words = ["--preset", "released"]
    assert values(asked(command, "cub", *words)) == VALUES["released"]["cub"]
    assert asked(command, "cub", *words).k == 200
    assert values(asked(command, None, *words)) == PAPER
    config = asked(command, "cub", *words, "--config", own, "--set", "debiased.weight=4")
    assert (
        config.k,
        config.options.debiased.threshold,
        config.options.debiased.weight,
        config.options.detector.weight,
    ) == (7, 0.6, 4, 0.005)


@pytest.mark.parametrize("benchmark", NAMES)
def test_where_nothing_was_released_the_command_says_so_in_one_line(
    benchmark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = asked("train", benchmark, "--preset", "released")
    said = capsys.readouterr()
    if benchmark in NOT_RELEASED:
        assert said.err == f"preset: paper, because nothing was released for {facts_of(benchmark).title} with debgcd\n"
        assert config.preset == "paper" and config.model_kept == "last"
    else:
        assert said.err == "" and config.preset == "released" and config.model_kept == "best-old"
    assert said.out == ""
    asked("train", benchmark, "--preset", "paper")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["train", "check", "estimate-k"])
def test_the_quality_on_the_command_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for quality, (network, times) in QUALITIES.items():
        config = asked(command, "cub", "--preset", "small", "--quality", quality, "--set", "schedule.lr=0.01")
        assert (config.quality, config.backbone.name, config.schedule.steps_times) == (quality, network, times)
    assert asked(command, None, "--preset", "small").quality == "balanced"
    capsys.readouterr()
    assert asked(command, None, "--quality", "best").preset == "small"  # whatever the machine
    assert "preset: small, because quality best is one of its values" in capsys.readouterr().err


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.trains])
def test_the_kept_epoch_is_chosen_only_where_public_code_chooses_it_by_old_accuracy(method: str) -> None:
    chosen = {"debgcd": 1, "gcd": 1, "infosieve": 1, "xcon": 10}  # epochs between candidates
    config = configuration.compose("released", method=method)
    expected = ("best-old", chosen[method]) if method in chosen else ("last", 10)
    assert (config.model_kept, config.run.eval_every) == expected


@pytest.mark.parametrize("preset", VALUES)
@pytest.mark.parametrize("method", ["mugcd", "sptnet", "simgcd"])
def test_epochs_are_those_of_each_stage(method: str, preset: str) -> None:
    config = asked("train", None, "--preset", preset, "--method", method, "--epochs", 3)
    first = METHODS[method].first
    stages = [config] if first is None else [config, first_stage(config, first)]
    assert [(stage.schedule.epochs, stage.schedule.steps) for stage in stages] == [(3, None)] * len(stages)


@pytest.mark.parametrize("words", [("--detector", "vote"), ("--labelled-fraction", 0.5)])
def test_options_of_the_detector_are_refused_by_methods_without_one(words: tuple[object, ...]) -> None:
    assert asked("train", None, "--preset", "small", *words).method == "debgcd"
    with pytest.raises(UsageError, match="--detector and --labelled-fraction are not for simgcd; omit them"):
        asked("train", None, "--preset", "small", "--method", "simgcd", *words)


def test_a_start_leaves_open_what_the_user_does_not_say() -> None:
    for preset in VALUES:
        config = asked("train", None, "--preset", preset, "--start", "runs/a", "--set", "views.resize=40")
        assert (config.backbone.name, config.views.size, config.views.resize) == (None, "auto", 40)
        config = asked("train", None, "--preset", preset, "--start", "runs/a", "--backbone", "lite1")
        assert config.backbone.name == "lite1"


def test_short_names_of_backbones(tmp_path: Path) -> None:
    for short, (name, _) in BACKBONES.items():
        for preset in VALUES:
            config = asked("train", None, "--preset", preset, "--backbone", short)
            assert config == configuration.compose(preset, backbone=short) and config.backbone.name == name
    for name in ("lite0", "facebook/dino-vits16", "./dino", "weights/dino.pth", "dinov3"):  # as they are, and views too
        config = asked("train", "cub", "--preset", "small", "--backbone", name)
        assert config.backbone.name == name and config.views == configuration.compose("small").views


def test_a_backbone_on_the_command_line_wins_over_a_file_and_its_views_do_not(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("{backbone: {name: lite0, tuned_blocks: 3}, views: {size: 112}}")
    config = asked("train", "cifar10", "--preset", "released", "--backbone", "dinov2", "--config", own)
    assert (config.backbone.name, config.backbone.tuned_blocks) == (BACKBONES["dinov2"][0], 3)
    assert (config.views.size, config.views.resize) == (112, 256)
    assert asked("train", None, "--preset", "paper", "--config", own).backbone.name == "lite0"


def test_the_method_is_known_before_anything_is_composed(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("method: gcd")
    ways = (
        ("--method", "gcd"),
        ("--config", own),
        ("--set", "method=gcd"),
        ("--method", "simgcd", "--set", "method=gcd"),
    )
    for words in ways:
        config = asked("train", "cub", "--preset", "released", *words)
        assert config.method == "gcd" and config.options.clustering.restarts == 100
    assert asked("train", "cub", "--preset", "released", "--config", own, "--method", "simgcd").model_kept == "last"


def test_values_are_checked_when_all_are_there() -> None:
    """A crop larger than the image before it is not refused if the image becomes larger too."""
    words = ("--preset", "paper", "--set", "views.size=320", "--set", "views.resize=366")
    assert asked("train", None, *words).views.size == 320
    with pytest.raises(UsageError, match=r"views.size 320 is larger than views.resize 256"):
        asked("train", None, *words[:4])


def test_the_config_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--preset", "small", "--diff", "paper"]) == 0
    lines = capsys.readouterr().out.splitlines()
    small, paper = (leaves(configuration.to_dict(configuration.compose(name))) for name in ("small", "paper"))
    differ = {key for key in small if small[key] != paper[key]} - {"preset"}
    assert {line.split(":")[0] for line in lines[1:]} == differ
    assert any(
        line.split()
        == ["schedule.lr:", "0.03", "(0.1)", "#", "0.1", "collapses", "for", "some", "seeds", "[preset", "small]"]
        for line in lines
    )

    assert main(["config", "--preset", "released", "--method", "gcd", "--benchmark", "cifar100", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    config = configuration.override(configuration.compose("released", "cifar100", method="gcd"), {"k": 100}, "")
    assert {key: entry["value"] for key, entry in told.items()} == leaves(configuration.to_dict(config))
    assert told["model_kept"]["reason"].endswith("[method gcd]")

    assert main(["config", "--preset", "released", "--benchmark", "pets"]) == 0
    text = capsys.readouterr().out
    assert "# nothing was released for pets with debgcd, so the values of preset paper apply\n" in text
    values = yaml.safe_load(text)  # it is YAML
    assert values["views.upright"] is False and values["debiased.threshold"] == 0.85

    assert main(["config", "--preset", "small", "--quality", "best", "--diff", "small"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("# preset small + method debgcd + quality best; differences from small")
    assert [line.split(":")[0] for line in lines[1:]] == ["quality", "backbone.name", "schedule.steps_times"]

    for words in (
        ["--preset", "papper"],
        ["--method", "simgdc"],
        ["--benchmark", "cup"],
        ["--diff", "x"],
        ["--preset", "small", "--quality", "x"],
    ):
        assert main(["config", *words]) == 2
        assert re.match(r"debgcd: (there is )?no (preset|quality|method|benchmark) ", capsys.readouterr().err)


def test_a_preset_is_chosen_before_all_other_values(tmp_path: Path) -> None:
    """Laid over another one it would only change the name under which results are kept."""
    own = tmp_path / "own.yaml"
    own.write_text("preset: released")
    for words in (("--set", "preset=released"), ("--config", own)):
        with pytest.raises(UsageError, match="the preset is chosen with --preset"):
            asked("train", None, "--preset", "small", *words)


def test_an_error_names_who_set_the_value(tmp_path: Path) -> None:
    words = ("--preset", "small", "--set", "views.size=64", "--set", "schedule.lr=-1", "--set", "views.resize=72")
    with pytest.raises(UsageError, match=r"^--set schedule.lr=-1: schedule.lr must be between 0 and 1000, not -1.0$"):
        asked("train", None, *words)
