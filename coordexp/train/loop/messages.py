"""Progress of a run as one line a logging step: terms, speed, time left."""

from coordexp.train.trainer import StepLog


def progress_line(
    name: str, log: StepLog, *, metrics: dict[str, float], max_steps: int, seconds_per_step: float
) -> str:
    """Return e.g. ``A-s0  step 120/400  loss 2.31 (text 0.80, coord ce 1.51, box 0.61)  93 img/s  1:20 left``."""
    left = int(seconds_per_step * (max_steps - log.step))
    parts = ", ".join(
        f"{label} {metrics[key]:.3f}"
        for label, key in (
            ("text", "train_text_loss"),
            ("coord ce", "train_coord_ce_loss"),
            ("box", "train_coord_loss"),
        )
        if key in metrics
    )
    return (
        f"{name}  step {log.step}/{max_steps}  loss {metrics['train_total_loss']:.3f} ({parts})  "
        f"{log.sums['num_images'] / max(log.seconds, 1e-9):.0f} img/s  {left // 60}:{left % 60:02d} left"
    )
