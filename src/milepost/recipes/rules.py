"""One grammar for rules in YAML and on the command line: ``{every_n_train_steps: 500}``, ``{last: 2}`` and so on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from milepost.errors import ConfigError
from milepost.policy.asking import OnRequest, OnSignal
from milepost.policy.retention import DiskBudget, KeepBest, KeepEvery, KeepLast, KeepRule, keep_last_rule
from milepost.policy.saving import AtEpochEnd, AtSteps, EveryMinutes, EverySteps, First, LogSpaced, SaveSchedule
from milepost.policy.spread import KeepLogSpaced, KeepWithin
from milepost.recipes.spelling import nearest

T = TypeVar("T")

_SCHEDULES: dict[str, Callable[[Any], SaveSchedule]] = {
    "every_n_train_steps": EverySteps,
    "at_steps": AtSteps,
    "log_spaced": lambda value: LogSpaced(**_settings(value, "log_spaced", ("first", "factor"))),
    "every_minutes": EveryMinutes,
    "at_epoch_end": lambda value: _flag(value, "at_epoch_end", AtEpochEnd),
    "first": lambda value: _flag(value, "first", First),
    "on_request": lambda value: _flag(value, "on_request", OnRequest),
    "on_signal": lambda value: OnSignal(*value) if isinstance(value, list) else OnSignal(value),
}
_KEEPERS: dict[str, Callable[[Any, Mapping[str, Any]], KeepRule]] = {
    "last": lambda value, rest: KeepLast(value, **rest),
    "best": lambda value, rest: KeepBest(value, **rest),
    "every": lambda value, rest: KeepEvery(value, **rest),
    "log_spaced": lambda value, rest: KeepLogSpaced(**_series(value, rest)),
    "within": lambda value, rest: KeepWithin(value, **rest),
    "disk_budget": lambda value, rest: DiskBudget(value, **rest),
}
_KEEPER_SETTINGS: dict[str, tuple[str, ...]] = {
    "last": ("level",),
    "best": ("metric", "mode", "level"),
    "every": ("level",),
    "log_spaced": ("factor", "level"),
    "within": ("level",),
    "disk_budget": ("level",),
}


def schedules(rules: Any, key: str) -> list[SaveSchedule]:
    """Schedules from a whole number (every so many steps), one rule, or a list of rules.

    Raises ConfigError naming ``key`` and the rule.
    """
    if isinstance(rules, int) and not isinstance(rules, bool):
        rules = {"every_n_train_steps": rules}
    items = rules if isinstance(rules, Sequence) and not isinstance(rules, str) else [rules]
    return [_schedule(item, f"{key}[{at}]" if items is rules else key) for at, item in enumerate(items)]


def keep_rules(rules: Any, key: str) -> list[KeepRule]:
    """Keep rules from a list of them. Raises ConfigError naming ``key`` and the rule."""
    if not isinstance(rules, Sequence) or isinstance(rules, str):
        raise ConfigError(f"{key}: {rules!r} must be a list of rules such as [{{last: 2}}]", key=key, value=rules)
    return [_keeper(item, f"{key}[{at}]") for at, item in enumerate(rules)]


def keep_rules_from_texts(texts: Sequence[str], key: str) -> list[KeepRule]:
    """Keep rules as a command line spells them: ``last=2``, ``best=1,metric=val_loss``, ``log_spaced=10,factor=2``.

    Raises ConfigError naming ``key`` and the rule.
    """
    return [_keeper(_read_text(text, key), key) for text in texts]


def spell_keep_rule(rule: KeepRule) -> str:
    """A rule as a command line spells it; one of somebody's own as Python shows it."""
    for kind, name, first in _SPELLINGS:
        if type(rule) is kind:
            rest = {other: getattr(rule, other) for other in _KEEPER_SETTINGS[name]}
            shown = {other: value for other, value in rest.items() if (other, value) not in _UNSAID}
            return ",".join(f"{key}={_spelled(value)}" for key, value in {name: getattr(rule, first), **shown}.items())
    return repr(rule)


def _spelled(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).replace(" ", "")


_UNSAID = (("level", "full"), ("mode", "min"))
_SPELLINGS: tuple[tuple[type, str, str], ...] = (
    (KeepLast, "last", "n"),
    (KeepBest, "best", "n"),
    (KeepEvery, "every", "n_steps"),
    (KeepLogSpaced, "log_spaced", "first"),
    (KeepWithin, "within", "duration"),
    (DiskBudget, "disk_budget", "limit"),
)


def _read_text(text: str, key: str) -> dict[str, Any]:
    item: dict[str, Any] = {}
    for part in text.split(","):
        name, sign, value = part.partition("=")
        if not sign or not name.strip() or name.strip() in item:
            raise ConfigError(f"{key}: {text!r} must be like last=2 or best=1,metric=val_loss", key=key, value=text)
        item[name.strip()] = _number(value.strip())
    return item


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _series(value: Any, rest: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {**_settings(value, "log_spaced", ("first", "factor")), **rest}
    return {"first": value, **rest}


def _schedule(item: Any, key: str) -> SaveSchedule:
    if not isinstance(item, Mapping) or len(item) != 1:
        raise ConfigError(
            f"{key}: {item!r} must be one rule such as {{every_n_train_steps: 500}}; there are {', '.join(_SCHEDULES)}",
            key=key,
            value=item,
        )
    ((name, value),) = item.items()
    make = _SCHEDULES.get(name)
    if make is None:
        raise ConfigError(f"{key}: there is no rule {name!r}{nearest(name, _SCHEDULES)}", key=key, value=item)
    return _made(lambda: make(value), key, item)


def _keeper(item: Any, key: str) -> KeepRule:
    names = [name for name in item if name in _KEEPERS] if isinstance(item, Mapping) else []
    if len(names) != 1:
        raise ConfigError(
            f"{key}: {item!r} must be one rule such as {{last: 2}} or {{best: 1, metric: val_loss}}; there are "
            f"{', '.join(_KEEPERS)}",
            key=key,
            value=item,
        )
    name = names[0]
    rest = {other: value for other, value in item.items() if other != name}
    for other in rest:
        if other not in _KEEPER_SETTINGS[name]:
            raise ConfigError(
                f"{key}: the rule {name!r} has no setting {other!r}{nearest(other, _KEEPER_SETTINGS[name])}",
                key=key,
                value=item,
            )
    return _made(lambda: _KEEPERS[name](item[name], rest), key, item)


def _made(make: Callable[[], T], key: str, item: Any) -> T:
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}: {error}", key=key, value=item) from error


def _settings(value: Any, rule: str, known: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{rule}: {value!r} must name its settings: {{{', '.join(f'{name}: …' for name in known)}}}")
    for name in value:
        if name not in known:
            raise ValueError(f"{rule} has no setting {name!r}{nearest(str(name), known)}")
    return dict(value)


def _flag(value: Any, rule: str, make: Callable[[], SaveSchedule]) -> SaveSchedule:
    if value is not True:
        raise ValueError(f"{rule}: {value!r} must be true; leave the rule out instead")
    return make()


def stored_keep_rules(values: Mapping[str, Any]) -> list[KeepRule]:
    """The keep rules of a configuration that was stored in a checkpoint, read without checking the rest of it.

    Raises ConfigError if they cannot be understood.
    """
    section = values.get("checkpoint")
    rules = keep_rules((section.get("keep") if isinstance(section, Mapping) else None) or [], "checkpoint.keep")
    given, best = values.get("keep_last_n_checkpoints"), values.get("keep_best_n_checkpoints")
    last = _made(lambda: keep_last_rule(given), "keep_last_n_checkpoints", given)
    if last is not None:
        rules.append(last)
    if best is not None:
        metric = values.get("best_metric") or ("val_loss" if values.get("validation_dataset") else "loss")
        rule = {"best": best, "metric": metric, "mode": values.get("best_mode", "min")}
        rules.append(_keeper(rule, "keep_best_n_checkpoints"))
    return rules
