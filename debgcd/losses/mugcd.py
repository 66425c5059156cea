"""μGCD (Vaze et al. 2023): a student learns from the moving average of its own weights.

No training code is public, and the formulas here come from a summary of the paper, arXiv 2311.17055.
"""

from __future__ import annotations

from torch import Tensor

from debgcd.config import schedules


def teacher_distillation(
    student_logits: Tensor, teacher_logits: Tensor, teacher_temp: float, student_temp: float = 0.1
) -> Tensor:
    """Vaze et al. 2023, L_u, first term: the student learns the teacher's sharper prediction of the same image.

    Both logits: (N, K) cosines; row i of the student saw a strong augmentation of the image of which the teacher saw a weak
    one. The teacher, a moving average, gets no gradient. Mean over rows.
    """
    if student_logits.ndim != 2:
        raise ValueError(f"student_logits must have shape (N, K), not {tuple(student_logits.shape)}")
    if teacher_logits.shape != student_logits.shape:
        raise ValueError(
            f"teacher_logits have shape {tuple(teacher_logits.shape)}, student_logits {tuple(student_logits.shape)}"
        )
    if not len(student_logits):
        return student_logits.sum() * 0.0
    teacher = (teacher_logits.detach() / teacher_temp).softmax(1)
    return -(teacher * (student_logits / student_temp).log_softmax(1)).sum(1).mean()


def momentum(progress: float, base: float = 0.7, end: float = 0.999) -> float:
    """Vaze et al. 2023, ω(t) = ω_T − (1 − ω_base)(cos(πt/T) + 1)/2: the share of its own weights that the teacher keeps.

    progress: t/T from 0 to 1; beyond 1 it stays at end. This form, BYOL's with ω_T for its 1, starts at base − (1 − end)
    rather than at base: at 0.699 for the defaults.
    """
    if not (base <= 1 and end <= 1 and base + end >= 1):
        raise ValueError(f"base and end must be at most 1 and sum to 1 or more, not {base} and {end}")
    return schedules.cosine(base + end - 1, end, progress)
