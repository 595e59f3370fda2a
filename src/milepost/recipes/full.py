"""Full fine-tuning of a causal language model on one device: read it from top to bottom.

    milepost run full --config my.yaml

``main`` looks at everything that can be wrong before it loads weights: the configuration, the checkpoint to go on
from, the data, the tokenizer, the run's folder. Then it builds the model, the optimizer and the manager, goes on
where the run stopped, and trains. A step is one optimizer update over a window of micro-batches; after each, the
manager decides whether to save.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from milepost.data import PaddingCollator, ResumableLoader
from milepost.manager import CheckpointManager
from milepost.policy.saving import as_schedule, next_due
from milepost.recipes.config import RecipeConfig
from milepost.recipes.config_files import changed_keys, config_file_name, parse_config, resolved_yaml
from milepost.recipes.huggingface import quiet_libraries
from milepost.recipes.loggers import JsonLinesLogger, MetricLogger
from milepost.recipes.losses import Batch, LossSinceSave, accumulate_gradients, all_tokens, validation_loss
from milepost.recipes.models import (
    DTYPES,
    check_vocabulary,
    find_source,
    fresh_model,
    pretrained_model,
    recompute_activations,
)
from milepost.recipes.optimizers import build_optimizer, put_settings, settings_of
from milepost.recipes.origins import Origin, check_run_folder, check_settings, find_origin, is_whole
from milepost.recipes.positions import DataPosition
from milepost.recipes.preparation import PreparedData, prepare_data
from milepost.recipes.progress import ProgressReport
from milepost.recipes.rules import spell_keep_rule
from milepost.recipes.schedules import PlannedRates, RatePlan, check_budget
from milepost.recipes.seeding import choose_device, deterministic_kernels, seed_everything
from milepost.records import Moment, TextAsset


def main(config: RecipeConfig, config_name: str) -> int:
    """Train as ``config`` says; ``config_name`` is the name or path that it was given under.

    Gives the exit status: 0 when the run has all its steps, 128 and the signal's number when a signal ended it after
    a save. Raises MilepostError, with a paragraph for people.
    """
    with quiet_libraries(), deterministic_kernels(config.deterministic), ProgressReport() as report:
        # What needs small files only comes first, so that a mistake is told within seconds.
        folder = Path(config.output_dir).expanduser()
        device = choose_device(config.device)
        source = None if config.model.path is None else find_source(config.model.path, "model.path", "config.json")
        origin = find_what_to_go_on_from(config, folder)
        data = prepare_data(config, origin)
        plan = plan_rates(config, data.length.total_steps, origin)
        report.say(data.sentence())
        if origin is not None and origin.checkpoint.step >= data.length.total_steps and is_whole(origin):
            report.say(data.length.ended(origin.checkpoint.step))
            return 0
        check_run_folder(folder)

        model = build_model(config, source, data.tokenizer).to(device)  # type: ignore[arg-type]
        report.say(f"{type(model).__name__}: {model.num_parameters():,} parameters, {config.dtype}, on {device}")
        run = FullFineTuning(config, config_file_name(config_name), data, model, plan, report)
        return run.train()


def find_what_to_go_on_from(config: RecipeConfig, folder: Path) -> Origin | None:
    """The checkpoint that the run goes on from, if there is one and its settings are these."""
    origin = find_origin(folder, config.resume.from_)
    if origin is None or origin.configuration is None:
        return origin
    before = parse_config(origin.configuration, str(origin.checkpoint.path))
    return check_settings(origin, changed_keys(before, config), config.resume.allow_changes)


def plan_rates(config: RecipeConfig, total_steps: int, origin: Origin | None) -> RatePlan:
    """The learning rates; refused now if the run's length has changed and nothing says what that means for them."""
    wanted = config.lr_scheduler
    warmup = wanted.warmup_ratio if wanted.warmup_ratio is not None else wanted.num_warmup_steps or 0
    plan = RatePlan(wanted.name, total_steps, warmup, wanted.min_lr_ratio)
    if origin is not None and origin.checkpoint.step < total_steps:
        check_budget(plan, origin.budget, total_steps, wanted.on_budget_change)
    return plan


def build_model(config: RecipeConfig, source: str | None, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The model to train, on the CPU: pretrained from ``source``, or fresh from the configuration's fields."""
    dtype, attention = DTYPES[config.dtype], config.model.attn_implementation
    if source is not None:
        model = pretrained_model(source, dtype, attention)
    else:
        model = fresh_model(config.model.config or {}, tokenizer, dtype, seed=config.seed, attention=attention)
    check_vocabulary(model, tokenizer)
    if config.enable_activation_checkpointing:
        recompute_activations(model)
    if config.compile:
        # In place: the names of its parameters stay as they are.
        model.compile()
    model.train()
    return model


class FullFineTuning:
    """The live objects of one run, and its loop. The run's folder is locked from construction until ``train`` ends."""

    def __init__(
        self,
        config: RecipeConfig,
        config_file: str,
        data: PreparedData,
        model: PreTrainedModel,
        plan: RatePlan,
        report: ProgressReport,
    ) -> None:
        self.config, self.data, self.model, self.report = config, data, model, report
        self.device, self.total_steps = model.device, data.length.total_steps
        self.saving = as_schedule(config.save_schedules())
        self.validating = as_schedule(config.validation_schedules())
        self.logging = as_schedule(config.log_schedules())
        self.optimizer = build_optimizer(config.optimizer.name, config.optimizer.settings, model)
        self.rates = PlannedRates(self.optimizer, plan)
        self.collate = PaddingCollator.for_tokenizer(data.tokenizer)
        self.loader = ResumableLoader(
            data.train,
            config.batch_size,
            shuffle=config.shuffle,
            seed=config.seed,
            num_workers=config.num_workers,
            collate_fn=self.collate,
            epoch_samples=data.length.epoch_samples,
            # Tokens are read, nothing is drawn.
            isolate_rng=False,
            pin_memory=self.device.type == "cuda",
        )
        self.loss = LossSinceSave(self.device)
        self.counters = {"tokens": 0, "samples": 0}
        self.checkpoints = CheckpointManager(
            config.output_dir,
            self._state(),
            save=config.save_schedules(),
            keep=config.keep_rules(),
            assets=[model, data.tokenizer, TextAsset(config_file, resolved_yaml(config))],
            config_name=config_file,
            background=config.checkpoint.background,
            capture=config.checkpoint.capture,
            when_busy=config.checkpoint.when_busy,
            verify=config.checkpoint.verify,
            max_shard_size=config.checkpoint.max_shard_size,
            trash_grace=config.checkpoint.trash_grace,
        )
        wanted = "jsonl" in config.metric_loggers
        self.loggers: list[MetricLogger] = [JsonLinesLogger(self.checkpoints.folder)] if wanted else []

    def _state(self) -> dict[str, Any]:
        """All that must come back; the random number generators are part of it anyway."""
        may_differ = bool(self.config.resume.allow_changes)
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "lr_scheduler": self.rates,
            "data": DataPosition(self.loader, may_differ=may_differ, say=self.report.say),
            "loss": self.loss,
            "counters": self.counters,
        }

    def train(self) -> int:
        """Go on from the newest checkpoint, or begin; gives the exit status."""
        with contextlib.ExitStack() as closing:
            for logger in self.loggers:
                closing.callback(logger.close)
            closing.enter_context(self.checkpoints)
            step = self._resume()
            if step >= self.total_steps:
                self.report.say(self.data.length.ended(step))
                return 0
            self.report.say(self._prospect(step))
            self.report.begin(step, self.total_steps)
            for window in self._windows():
                step += 1
                self._step(step, window)
                if step == self.total_steps or self.checkpoints.should_stop:
                    break
        signal = self.checkpoints.stop_signal
        if signal is not None and step < self.total_steps:
            self.report.say(f"{signal.name}: step {step:,} is saved, and the same command goes on from there")
            return 128 + signal
        self.report.say(f"done: {step:,} steps; the last one is saved in {self.checkpoints.folder}")
        return 0

    def _resume(self) -> int:
        # The same random numbers in training, whatever building the model took of them.
        seed_everything(self.config.seed)
        settings = settings_of(self.optimizer)
        step = 0 if self.config.resume.from_ == "never" else self.checkpoints.resume(self.config.resume.from_)
        # The optimizer's state came back with its old settings; what the configuration says now counts.
        put_settings(self.optimizer, settings)
        if step < self.total_steps:
            self.rates.settle(self.total_steps, self.config.lr_scheduler.on_budget_change, self.report.say)
        for logger in self.loggers:
            logger.go_on_after(step)
        return step

    def _windows(self) -> Iterator[list[Batch]]:
        """The micro-batches of one step after the other, epoch after epoch; a window never crosses an epoch's end."""
        while True:
            batches = iter(self.loader)
            while window := list(itertools.islice(batches, self.config.gradient_accumulation_steps)):
                yield window

    def _step(self, step: int, window: Sequence[Batch]) -> None:
        """One optimizer update, its numbers, validation if it is due, and then the manager's turn."""
        numbers: dict[str, Any] = {"lr": self.rates.rate}
        self.optimizer.zero_grad(set_to_none=True)
        summed, tokens = accumulate_gradients(self.model, window, self.device)
        if self.config.clip_grad_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_grad_norm)
            numbers["grad_norm"] = norm
        self.optimizer.step()
        self.rates.step()
        self.loss.add(summed, tokens)
        numbers["loss"] = summed / max(tokens, 1)
        self._count(window)

        moment = Moment(step, step - 1, epoch_end=self.loader.position == 0)
        metrics: dict[str, Any] = {"loss": self.loss.mean}
        if self._validation_is_due(moment):
            with self.report.clock_stopped():
                score = validation_loss(self.model, self._validation_batches(), self.device)
            metrics["val_loss"] = numbers["val_loss"] = score
        if "val_loss" in numbers or self.logging.reason_to_save(moment) is not None:
            self._log(step, numbers)
        # After validation, so that a score belongs to the checkpoint of its own step.
        self.checkpoints.step(step, metrics=metrics, epoch_end=moment.epoch_end)

    def _count(self, window: Sequence[Batch]) -> None:
        tokens = sum(all_tokens(batch) for batch in window)
        self.report.consumed(tokens)
        self.counters["tokens"] += tokens
        self.counters["samples"] += sum(len(batch["input_ids"]) for batch in window)

    def _validation_is_due(self, moment: Moment) -> bool:
        if self.data.validation is None:
            return False
        # Also at the last step, so that the final checkpoint has a score.
        return self.validating.reason_to_save(moment) is not None or moment.step == self.total_steps

    def _validation_batches(self) -> Iterator[Batch]:
        rows, size = self.data.validation or (), self.config.batch_size
        for start in itertools.islice(range(0, len(rows), size), self.config.max_validation_batches):
            yield self.collate([rows[index] for index in range(start, min(start + size, len(rows)))])

    def _log(self, step: int, numbers: dict[str, Any]) -> None:
        plain = {name: float(value) for name, value in numbers.items()}
        plain |= {"epoch": step / self.data.length.steps_per_epoch, "tokens": self.counters["tokens"]}
        plain["tokens_per_second"] = round(self.report.speed(), 1)
        for logger in self.loggers:
            logger.log(step, plain)
        if "terminal" in self.config.metric_loggers:
            self.report.show(step, plain, self._next_save(step))

    def _next_save(self, step: int) -> int:
        return next_due(self.saving, step, self.total_steps) or self.total_steps

    def _prospect(self, step: int) -> str:
        begins = "begins" if step == 0 else f"goes on after step {step:,}"
        rules = "; ".join(map(spell_keep_rule, self.config.keep_rules())) or "all"
        return (
            f"{begins}; the next save is at step {self._next_save(step):,}, and one at the last step always; keeps "
            f"{rules}; in {self.checkpoints.folder}"
        )
