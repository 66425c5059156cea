"""From files to categories, as `debgcd predict` does it: scan, decode, trunk, tail, classifier."""

from __future__ import annotations

from dataclasses import replace

from debgcd.data.manifest import from_paths
from debgcd.infer.predict import predict
from debgcd.model.load import load_backbone
from debgcd.model.precision import pick_precision
from debgcd.reproduce.bench.decode import photographs
from debgcd.reproduce.bench.networks import CPU, TUNED_BLOCKS, random_vit, trainee
from debgcd.reproduce.bench.results import Line
from debgcd.reproduce.bench.session import Session, Work
from debgcd.run.categories import categories
from debgcd.run.model_folder import Model
from debgcd.system.progress import say


def measure(session: Session) -> list[Line]:
    sizes = session.sizes
    resize, crop = sizes.lite_pixels
    networks = [("lite0", "lite0", resize, crop, sizes.predicted[0])]
    for shape in session.shapes[:1]:  # the smallest
        _, folder = random_vit(session, shape)
        networks.append((shape.name, str(folder), sizes.views.short_side, sizes.views.crop, sizes.predicted[1]))
    lines = []
    for name, source, resize, crop, count in networks:
        say(f"predict, {name}:")
        model = _model(session, source, resize, crop)
        manifest = from_paths(photographs(session, sizes.small, count))
        work = Work(lambda model=model, manifest=manifest: list(predict(model, manifest)), count)  # type: ignore[misc]
        seconds = session.seconds({name: work})[name]  # without a report: `predict` has its own
        what = f"{name} at {crop} px, {count} VGA files to categories"
        lines.append(Line("predict", what, "images/s", 1 / seconds))
    return lines


def _model(session: Session, source: str, resize: int, crop: int) -> Model:
    config, known = session.config(), session.sizes.known
    precision = pick_precision("auto", CPU)
    one = trainee(config, known, load_backbone(source, tuned_blocks=TUNED_BLOCKS, image_size=crop, precision=precision))
    config = replace(config, views=replace(config.views, resize=resize, size=crop))
    names = categories([f"class {i:03d}" for i in range(known)], session.sizes.k)
    return Model(one.network, one.method, config, names, images=1, sha256="")
