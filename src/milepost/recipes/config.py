"""A run's configuration: every key, its type and its rule; checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from milepost.policy.retention import KeepBest, KeepRule, keep_last_rule
from milepost.policy.saving import EverySteps, SaveSchedule
from milepost.quantities import parse_duration, parse_size
from milepost.recipes.optimizer_settings import check_optimizer
from milepost.recipes.rules import keep_rules, schedules
from milepost.recipes.spelling import nearest

Whole = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Form = Literal["alpaca", "prompt_completion", "text"]
FIELDS: dict[Form, tuple[str, ...]] = {
    "alpaca": ("instruction", "input", "output"),
    "prompt_completion": ("prompt", "completion"),
    "text": ("text",),
}
METRICS = ("loss", "val_loss")


class Section(BaseModel):
    """Unknown keys are errors, and a text is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ModelConfig(Section):
    """The model: a pretrained one (``path``) or a fresh one (``config``)."""

    path: str | None = Field(None, description="folder or Hub name for from_pretrained")
    config: dict[str, Any] | None = Field(None, description="fields of a transformers configuration, with model_type")
    attn_implementation: str | None = Field(None, description="as in from_pretrained: eager, sdpa, …")

    @model_validator(mode="after")
    def _one_of_two(self) -> ModelConfig:
        if (self.path is None) == (self.config is None):
            raise ValueError("give either path (a pretrained model) or config (a fresh one)")
        if self.config is not None and not isinstance(self.config.get("model_type"), str):
            raise ValueError("config needs model_type, such as llama")
        return self


class TokenizerConfig(Section):
    """The tokenizer: a pretrained one (``path``) or a byte-pair one trained from the training text (``vocab_size``)."""

    path: str | None = Field(None, description="folder or Hub name for from_pretrained; default: the model's path")
    vocab_size: Annotated[int, Field(ge=258)] | None = Field(
        None, description="train a byte-level byte-pair tokenizer of this many tokens from the training text"
    )
    chat_template: str | None = Field(None, description="a Jinja chat template that replaces the tokenizer's own")
    max_seq_len: Whole | None = Field(None, description="cut samples to this many tokens")

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizerConfig:
        if self.path is not None and self.vocab_size is not None:
            raise ValueError("give either path (a pretrained tokenizer) or vocab_size (one trained from the data)")
        return self


class DatasetConfig(Section):
    """Where rows come from, as in ``datasets.load_dataset``, and how one reads."""

    source: str = Field(description="json, csv, parquet, text (with data_files), a Hub name, or embedded")
    data_files: str | list[str] | None = Field(None, description="a path or a list of paths")
    subset: str | None = Field(None, description="the configuration of a Hub data set")
    split: str = Field("train", description="the split to load")
    form: Form = Field("alpaca", description="alpaca, prompt_completion or text")
    columns: dict[str, str] = Field(default_factory=dict, description="field: its name in the data")
    train_on_prompt: bool = Field(False, description="teach the question too, not the answer alone")
    limit: Whole | None = Field(None, description="use the first rows only")

    @model_validator(mode="after")
    def _source_and_files(self) -> DatasetConfig:
        from_files = self.source in ("json", "csv", "parquet", "text")
        if from_files and not self.data_files:
            raise ValueError(f"source: {self.source} needs data_files, a path or a list of paths")
        if self.source == "embedded" and (self.data_files or self.subset or self.columns or self.form != "alpaca"):
            raise ValueError("source: embedded takes no data_files, subset, columns or form")
        if not from_files and self.data_files:
            raise ValueError(f"data_files need source: json, csv, parquet or text, not {self.source!r}")
        if self.source == "text" and self.form != "text":
            raise ValueError(
                f"source: text gives rows of one text each, so form: {self.form} finds no fields; use text"
            )
        return self

    @model_validator(mode="after")
    def _known_columns(self) -> DatasetConfig:
        for field in self.columns:
            if field not in FIELDS[self.form]:
                near = nearest(field, FIELDS[self.form])
                raise ValueError(f"columns: the form {self.form} has no field {field!r}{near}")
        return self


class SplitConfig(Section):
    """Validation rows taken out of the training data: a share of them, or a number."""

    split_from_train: Annotated[float, Field(gt=0, lt=1)] | Whole = Field(
        description="a share (0.1) or a number of rows, held out by a fixed rule"
    )


def _which(values: Any) -> str:
    split = isinstance(values, SplitConfig) or (isinstance(values, Mapping) and "split_from_train" in values)
    return "SplitConfig" if split else "DatasetConfig"


ValidationConfig = Annotated[
    Annotated[DatasetConfig, Tag("DatasetConfig")] | Annotated[SplitConfig, Tag("SplitConfig")], Discriminator(_which)
]


class OptimizerConfig(BaseModel):
    """A dense optimizer of ``torch.optim`` by name; further keys are its own settings."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    name: str = Field("AdamW", description="a class of torch.optim")
    lr: Positive = Field(2e-5, description="the highest learning rate")

    @model_validator(mode="after")
    def _known(self) -> OptimizerConfig:
        check_optimizer(self.name, self.settings)
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments for the class, ``lr`` among them."""
        return {"lr": self.lr, **(self.model_extra or {})}


class SchedulerConfig(Section):
    """How the learning rate goes: warm-up, then constant, linear or cosine."""

    name: Literal["constant", "linear", "cosine"] = Field("constant", description="constant, linear or cosine")
    num_warmup_steps: Annotated[int, Field(ge=0)] | None = Field(None, description="steps of linear warm-up")
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] | None = Field(None, description="the same as a share of the run")
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = Field(0.0, description="the last rate, as a share of lr")
    on_budget_change: Literal["refuse", "replan", "keep"] = Field(
        "refuse", description="what a resumed run of another length does: refuse, replan or keep the schedule"
    )

    @model_validator(mode="after")
    def _one_warmup(self) -> SchedulerConfig:
        if self.num_warmup_steps is not None and self.warmup_ratio is not None:
            raise ValueError("give either num_warmup_steps or warmup_ratio")
        return self

    def warmup_steps(self, total_steps: int) -> int:
        """Steps of warm-up in a run of this length."""
        if self.warmup_ratio is not None:
            return int(total_steps * self.warmup_ratio)
        return self.num_warmup_steps or 0


class CheckpointConfig(Section):
    """Saving and keeping in full: lists of rules, and how files are written."""

    save: list[dict[str, Any]] | None = Field(None, description="rules such as {every_n_train_steps: 500}; any of them")
    keep: list[dict[str, Any]] | None = Field(None, description="rules such as {last: 2}; kept if any rule wants it")
    background: bool = Field(True, description="copy the state and write while training goes on")
    capture: Literal["overlapped", "immediate"] = Field("overlapped", description="when that copy is complete")
    when_busy: Literal["wait", "skip"] = Field("wait", description="a save that is due while another is written")
    verify: Literal["digests", "sizes"] = Field("digests", description="what a resume checks")
    max_shard_size: str | Whole = Field("5GB", description="the largest weight file")
    trash_grace: str | Annotated[float, Field(ge=0)] | Annotated[int, Field(ge=0)] = Field(
        0, description="how long what is pruned can be brought back: seconds, or a text such as 2h"
    )

    @model_validator(mode="after")
    def _rules(self) -> CheckpointConfig:
        parse_size(self.max_shard_size, "max_shard_size")
        parse_duration(self.trash_grace, "trash_grace")
        schedules(self.save or [], "checkpoint.save")
        keep_rules(self.keep or [], "checkpoint.keep")
        return self


class ResumeConfig(Section):
    """Where to go on from, and which changed settings are meant."""

    from_: str | Annotated[int, Field(ge=0)] = Field("auto", alias="from", description="auto, never, a step or a path")
    allow_changes: list[str] = Field(default_factory=list, description="guarded keys that may differ")

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)


class RecipeConfig(Section):
    """One run."""

    output_dir: str = Field(min_length=1, description="the run's folder; checkpoints are step_N folders in it")
    model: ModelConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    dataset: DatasetConfig
    validation_dataset: ValidationConfig | None = Field(
        None, description="rows to validate on: as dataset, or {split_from_train: 0.1}"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="seed of weights, order and dropout")
    shuffle: bool = Field(True, description="shuffle the rows anew each epoch")
    batch_size: Whole = Field(2, description="rows in one forward pass")
    gradient_accumulation_steps: Whole = Field(1, description="forward passes to one optimizer step")
    num_workers: Annotated[int, Field(ge=0)] = Field(0, description="processes that prepare batches")
    epochs: Whole | None = Field(None, description="passes over the data; default 1 without max_steps")
    max_steps_per_epoch: Whole | None = Field(None, description="end each epoch after so many steps")
    max_steps: Whole | None = Field(None, description="end the run after so many steps")
    drop_incomplete_window: bool = Field(True, description="leave out rows that do not fill a step at an epoch's end")
    optimizer: OptimizerConfig = OptimizerConfig()
    lr_scheduler: SchedulerConfig = SchedulerConfig()
    loss: Literal["cross_entropy"] = Field("cross_entropy", description="token-weighted cross entropy")
    clip_grad_norm: Positive | None = Field(None, description="the largest gradient norm")
    dtype: Literal["fp32", "bf16"] = Field("fp32", description="dtype of the weights: fp32 or bf16")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps, …")
    compile: bool = Field(False, description="torch.compile the model")
    enable_activation_checkpointing: bool = Field(False, description="recompute activations to save memory")
    deterministic: bool = Field(False, description="only deterministic kernels (slower on GPUs)")
    save_every_n_train_steps: Whole | None = Field(None, description="save every so many steps")
    keep_last_n_checkpoints: int | None = Field(None, description="keep the newest n; null or -1 keeps all")
    keep_best_n_checkpoints: Whole | None = Field(None, description="and the n best by best_metric")
    best_metric: Literal["loss", "val_loss"] | None = Field(
        None, description="default val_loss if there is validation, else loss"
    )
    best_mode: Literal["min", "max"] = Field("min", description="whether less or more is better")
    checkpoint: CheckpointConfig = CheckpointConfig()
    validate_every_n_train_steps: Whole | dict[str, Any] | None = Field(
        None, description="a number of steps, or a rule such as {log_spaced: {first: 10, factor: 2}}"
    )
    max_validation_batches: Whole | None = Field(None, description="validate on the first batches only")
    log_every_n_steps: Whole | dict[str, Any] = Field(1, description="a number of steps, or a rule")
    metric_loggers: list[Literal["terminal", "jsonl"]] = Field(
        ["terminal", "jsonl"], description="terminal and jsonl (metrics.jsonl in output_dir)"
    )
    resume: ResumeConfig = Field(
        ResumeConfig.model_validate({}),
        description="auto, never, a step, a path, or {from: …, allow_changes: [key, …]}",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and isinstance(values.get("resume"), str | int):
            values = {**values, "resume": {"from": values["resume"]}}
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> RecipeConfig:
        # Imported here: the checks need this class.
        from milepost.recipes.config_checks import check_config

        check_config(self)
        return self

    @property
    def tokenizer_path(self) -> str | None:
        """Where the tokenizer is loaded from; None if it is trained from the data."""
        if self.tokenizer.vocab_size is not None:
            return None
        return self.tokenizer.path if self.tokenizer.path is not None else self.model.path

    @property
    def number_of_epochs(self) -> int | None:
        """Passes over the data; None if ``max_steps`` alone says how long."""
        return self.epochs if self.epochs is not None or self.max_steps is not None else 1

    def save_schedules(self) -> list[SaveSchedule]:
        """When to save."""
        if self.save_every_n_train_steps is not None:
            return [EverySteps(self.save_every_n_train_steps)]
        return schedules(self.checkpoint.save or [], "checkpoint.save")

    def keep_rules(self) -> list[KeepRule]:
        """What to keep; empty keeps all."""
        rules: list[KeepRule] = keep_rules(self.checkpoint.keep or [], "checkpoint.keep")
        last = keep_last_rule(self.keep_last_n_checkpoints)
        if last is not None:
            rules.append(last)
        if self.keep_best_n_checkpoints is not None:
            rules.append(KeepBest(self.keep_best_n_checkpoints, self.metric_of_best, self.best_mode))
        return rules

    def validation_schedules(self) -> list[SaveSchedule]:
        """When to validate, beside the last step."""
        every = self.validate_every_n_train_steps
        return [] if every is None else schedules(every, "validate_every_n_train_steps")

    def log_schedules(self) -> list[SaveSchedule]:
        """When to log."""
        return schedules(self.log_every_n_steps, "log_every_n_steps")

    @property
    def metric_of_best(self) -> str:
        """The score that ``keep_best_n_checkpoints`` goes by."""
        return self.best_metric or ("val_loss" if self.validation_dataset is not None else "loss")
