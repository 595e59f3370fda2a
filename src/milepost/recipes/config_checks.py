"""Settings that are right one by one and cannot work together: refused at start, never found out in mid-run."""

from __future__ import annotations

from milepost.policy.retention import KeepBest, keep_last_rule
from milepost.policy.saving import as_schedule, next_due
from milepost.recipes.config import METRICS, RecipeConfig
from milepost.recipes.config_files import GUARDED
from milepost.recipes.spelling import nearest

_HORIZON = 100_000


def check_config(config: RecipeConfig) -> None:
    """Raise ValueError with a sentence that names the keys."""
    _check_forms(config)
    _check_sources(config)
    _check_validation(config)
    config.save_schedules(), config.validation_schedules(), config.log_schedules()
    _check_best(config)


def _check_forms(config: RecipeConfig) -> None:
    if config.save_every_n_train_steps is not None and config.checkpoint.save is not None:
        raise ValueError("save_every_n_train_steps and checkpoint.save say the same thing twice; use one of them")
    short = [
        name for name in ("keep_last_n_checkpoints", "keep_best_n_checkpoints") if getattr(config, name) is not None
    ]
    if short and config.checkpoint.keep is not None:
        raise ValueError(f"{' and '.join(short)} and checkpoint.keep say the same thing twice; use one form")
    try:
        keep_last_rule(config.keep_last_n_checkpoints)
    except ValueError as error:
        raise ValueError(f"keep_last_n_checkpoints: {error}") from None
    if config.keep_last_n_checkpoints == -1 and config.keep_best_n_checkpoints is not None:
        raise ValueError(
            "keep_last_n_checkpoints: -1 keeps all, so that keep_best_n_checkpoints says nothing; drop one of them"
        )


def _check_sources(config: RecipeConfig) -> None:
    if config.tokenizer_path is None and config.tokenizer.vocab_size is None:
        raise ValueError("tokenizer: a fresh model needs tokenizer.path or tokenizer.vocab_size")
    if config.resume.from_ == "":
        raise ValueError("resume: an empty text is no path; use auto, never, healthy, a step or a path")
    window = config.batch_size * config.gradient_accumulation_steps
    if config.drop_incomplete_window and config.resume.skip_samples % window:
        raise ValueError(
            f"resume.skip_samples: {config.resume.skip_samples} is no whole number of steps, which have {window} "
            "samples each"
        )
    for key in config.resume.allow_changes:
        if not any(f"{name}.".startswith(f"{key}.") or key.startswith(f"{name}.") for name in GUARDED):
            raise ValueError(f"resume.allow_changes: {key!r} is no setting that a resume guards{nearest(key, GUARDED)}")


def _check_validation(config: RecipeConfig) -> None:
    for key in ("validate_every_n_train_steps", "max_validation_batches"):
        if getattr(config, key) is not None and config.validation_dataset is None:
            raise ValueError(f"{key} needs a validation_dataset")


def _check_best(config: RecipeConfig) -> None:
    if config.best_metric is not None and config.keep_best_n_checkpoints is None:
        raise ValueError("best_metric needs keep_best_n_checkpoints")
    for rule in config.keep_rules():
        if not isinstance(rule, KeepBest):
            continue
        if rule.metric not in METRICS:
            raise ValueError(f"keep: this recipe has no metric {rule.metric!r}; it has {', '.join(METRICS)}")
        if rule.metric == "val_loss":
            _check_scored_saves(config)


def _check_scored_saves(config: RecipeConfig) -> None:
    if config.validation_dataset is None:
        raise ValueError("keeping the best by val_loss needs a validation_dataset")
    if config.validate_every_n_train_steps is None:
        raise ValueError(
            "keeping the best by val_loss needs validate_every_n_train_steps: without it only the last step has a score"
        )
    saving, validating = as_schedule(config.save_schedules()), as_schedule(config.validation_schedules())
    horizon = min(config.max_steps or _HORIZON, _HORIZON)
    # Schedules that go by the clock or by epochs may meet any step.
    if not all(hasattr(each, "steps_after") for each in (*saving.schedules, *validating.schedules)):
        return
    saved = next_due(saving, 0, horizon)
    if saved is None:
        # Only the last step is saved, and that one has a score always.
        return
    validated = next_due(validating, 0, horizon)
    while saved is not None and validated is not None and saved != validated:
        if saved < validated:
            saved = next_due(saving, validated - 1, horizon)
        else:
            validated = next_due(validating, saved - 1, horizon)
    if saved is None or validated is None:
        raise ValueError(
            "keeping the best by val_loss needs steps that are both validated and saved, and within "
            f"{horizon:,} steps there are none; let validate_every_n_train_steps meet the steps of saving"
        )
