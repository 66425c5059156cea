"""μGCD's loss and momentum against their slow forms, and what a caller relies on."""

import math

import peer_oracles as oracles
import pytest
import torch
from test_losses import CLASSIFIER, PRECISIONS, close, cosines, drawn, extreme_rows, generator

from debgcd import losses


@pytest.mark.parametrize(("teacher_temp", "student_temp"), [(0.07, 0.1), (0.04, 0.1), (0.5, 0.3)])
@pytest.mark.parametrize(("seed", "rows", "categories"), drawn(CLASSIFIER))
def test_teacher_distillation(seed: int, rows: int, categories: int, teacher_temp: float, student_temp: float):
    rng = generator(seed)
    student, teacher = cosines(rng, rows, categories), cosines(rng, rows, categories)
    expected = oracles.teacher_distillation(student.tolist(), teacher.tolist(), teacher_temp, student_temp)
    assert close(losses.teacher_distillation(student, teacher, teacher_temp, student_temp), expected)


def test_default_student_temperature():
    rng = generator(5)
    student, teacher = cosines(rng, 6, 4), cosines(rng, 6, 4)
    expected = oracles.teacher_distillation(student.tolist(), teacher.tolist(), 0.05, 0.1)
    assert close(losses.teacher_distillation(student, teacher, 0.05), expected)


def test_a_teacher_that_is_the_student_on_the_other_view_gives_self_distillation():
    """SimGCD is μGCD whose teacher keeps nothing of its own weights, with both views in both parts."""
    logits = cosines(generator(2), 10, 4)
    value = losses.teacher_distillation(logits, logits.roll(5, 0), 0.05).item()
    assert close(losses.self_distillation(logits, 0.05), value)


def test_the_student_is_trained_and_the_teacher_is_not():
    rng = generator(1)
    student, teacher = cosines(rng, 6, 4).requires_grad_(), cosines(rng, 6, 4).requires_grad_()
    losses.teacher_distillation(student, teacher, 0.07).backward()
    assert teacher.grad is None
    expected = ((student / 0.1).softmax(1) - (teacher / 0.07).softmax(1)) / 0.1 / 6
    torch.testing.assert_close(student.grad, expected.detach(), rtol=1e-10, atol=1e-10)
    fixed = teacher.detach()
    assert torch.autograd.gradcheck(lambda x: losses.teacher_distillation(x, fixed, 0.07), (student,))


@PRECISIONS
@pytest.mark.parametrize("alike", [True, False])
def test_extreme_logits(alike: bool, dtype: torch.dtype, tolerance: float):
    student, teacher = (extreme_rows(8, 5, seed, alike).to(dtype) for seed in (0, 1))
    leaf = student.clone().requires_grad_()
    value = losses.teacher_distillation(leaf, teacher, 0.01, 0.01)
    assert close(value, oracles.teacher_distillation(student.tolist(), teacher.tolist(), 0.01, 0.01), tolerance)
    value.backward()
    assert leaf.grad.isfinite().all()


def test_float32_is_close_to_float64_and_inputs_are_not_modified():
    rng = generator(3)
    student, teacher = cosines(rng, 6, 4).float(), cosines(rng, 6, 4).float()
    before = [student.clone(), teacher.clone()]
    value = losses.teacher_distillation(student, teacher, 0.07)
    assert value.dtype == torch.float32
    assert close(value, losses.teacher_distillation(student.double(), teacher.double(), 0.07).item(), 1e-5)
    for tensor, copy in zip([student, teacher], before, strict=True):
        assert tensor._version == 0 and tensor.equal(copy)


def test_empty_set_gives_a_live_zero():
    weight = torch.ones(6, 4, requires_grad=True)
    value = losses.teacher_distillation(torch.zeros(0, 6) @ weight, torch.zeros(0, 4), 0.07)
    assert value.shape == () and value.item() == 0.0
    value.backward()
    assert weight.grad is not None and weight.grad.count_nonzero() == 0


def test_arguments_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"\bteacher_logits\b"):
        losses.teacher_distillation(torch.zeros(4, 3), torch.zeros(2, 3), 0.07)
    with pytest.raises(ValueError, match=r"\bteacher_logits\b"):
        losses.teacher_distillation(torch.zeros(4, 3), torch.zeros(4, 1), 0.07)
    with pytest.raises(ValueError, match=r"\bstudent_logits\b"):
        losses.teacher_distillation(torch.zeros(4), torch.zeros(4), 0.07)


def test_nothing_asks_the_device_for_a_value():
    """Tensors on the meta device have none."""
    logits = torch.empty(6, 4, device="meta")
    assert losses.teacher_distillation(logits, logits, 0.07).is_meta


@pytest.mark.parametrize(("base", "end"), [(0.7, 0.999), (0.996, 1.0), (0.5, 0.9), (1.0, 1.0), (0.001, 0.999)])
def test_momentum(base: float, end: float):
    values = [losses.momentum(step / 40, base, end) for step in range(41)]
    assert values == pytest.approx([oracles.momentum(step / 40, base, end) for step in range(41)], rel=1e-12, abs=1e-12)
    assert values == sorted(values)


def test_momentum_runs_from_just_below_base_to_end():
    """As the formula has it: 0.999 − 0.3 at the start."""
    assert math.isclose(losses.momentum(0.0), 0.699)
    assert math.isclose(losses.momentum(1.0), 0.999)
    assert losses.momentum(1.2) == losses.momentum(1.0)


@pytest.mark.parametrize(("base", "end"), [(0.0, 0.999), (1.1, 0.9), (0.7, 1.01)])
def test_a_momentum_outside_of_zero_and_one_is_refused(base: float, end: float):
    with pytest.raises(ValueError, match=r"\bbase\b"):
        losses.momentum(0.5, base, end)
