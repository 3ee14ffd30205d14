"""Drafters by method name: `build_drafter`.

Owns which settings each method takes and what it needs of the target. The settings' ranges are checked where they are
declared; here only what depends on the target is.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import nn

from pilotfish.drafters.base import Drafter
from pilotfish.drafters.suffix_pool import SuffixPool
from pilotfish.errors import SpeculativeConfigError
from pilotfish.models.cache import cache_dir
from pilotfish.models.loading import Model
from pilotfish.models.tokenizer import require_same_tokenizer


@runtime_checkable
class DrafterSettings(Protocol):
    """What the methods take; see `SpeculativeConfig`."""

    @property
    def model(self) -> str | None: ...
    @property
    def prompt_lookup_min(self) -> int: ...
    @property
    def prompt_lookup_max(self) -> int: ...
    @property
    def tree_width(self) -> int: ...
    @property
    def suffix_decoding_max_spec_factor(self) -> float: ...
    @property
    def suffix_decoding_min_token_prob(self) -> float: ...
    @property
    def suffix_pool(self) -> str | None: ...
    @property
    def suffix_pool_tokens(self) -> int: ...
    @property
    def exit_layer(self) -> int | None: ...


def build_drafter(
    method: str, settings: DrafterSettings, target: Model, load: Callable[[str | Path], Model]
) -> Drafter:
    """A drafter for one target.

    Args:
        method: "draft_model", "ngram", "suffix", "recycle", "lookup", "table", "early_exit" or "eagle".
        settings: complete and in range.
        target: the model it drafts for.
        load: loads a draft model by name.

    Raises:
        SpeculativeConfigError: a setting does not fit the target.
        ModelError: a model or head cannot be found, read or used.
        TokenizerMismatchError: target and draft model do not share a tokenizer.
        CorruptPoolError: the file of a pool is damaged or another's.
    """
    match method:
        case "ngram":
            from pilotfish.drafters.ngram import NgramDrafter

            return NgramDrafter(settings.prompt_lookup_min, settings.prompt_lookup_max)
        case "suffix":
            from pilotfish.drafters.suffix import SuffixDrafter

            return SuffixDrafter(
                settings.tree_width,
                settings.suffix_decoding_max_spec_factor,
                settings.suffix_decoding_min_token_prob,
                None if settings.suffix_pool is None else _pool(settings.suffix_pool, settings, target),
            )
        case "recycle":
            from pilotfish.drafters.recycle import RecycleDrafter

            return RecycleDrafter(settings.tree_width)
        case "early_exit":
            return _early_exit(settings, target)
        case "lookup" | "table":
            from pilotfish.drafters.backoff import load_table
            from pilotfish.drafters.lookup import LookupDrafter

            assert method == "lookup" or settings.model is not None, "checked with the settings"
            table = None if settings.model is None else load_table(settings.model, target.files.fingerprint)
            return LookupDrafter(table, settings.tree_width, own_text=method == "lookup")
        case "eagle":
            from pilotfish.drafters.eagle import EagleDrafter
            from pilotfish.models.eagle_files import load_eagle_head

            assert settings.model is not None, "checked with the settings"
            config = target.executor.config
            head = load_eagle_head(settings.model, config, target.files.weights)
            _make_native(head, target)
            return EagleDrafter(head, head.config.boundaries_of(config.num_layers), settings.tree_width)
        case _:
            from pilotfish.drafters.draft_model import DraftModelDrafter

            assert method == "draft_model", "checked with the settings"
            assert settings.model is not None, "checked with the settings"
            draft = load(settings.model)
            if draft.executor is target.executor:
                raise SpeculativeConfigError(
                    f"model={settings.model!r} is the target itself, which would draft as slowly as it verifies, and "
                    "out of the same cache: expected a smaller model"
                )
            require_same_tokenizer(target.tokenizer, draft.tokenizer)
            return DraftModelDrafter(draft.executor)


def _early_exit(settings: DrafterSettings, target: Model) -> Drafter:
    from pilotfish.drafters.early_exit import EarlyExitDrafter
    from pilotfish.models.exit_adapter import load_exit_adapter

    if settings.model is None:
        assert settings.exit_layer is not None, "checked with the settings"
        return EarlyExitDrafter(target.executor, settings.exit_layer)
    adapter = load_exit_adapter(settings.model, target.executor.config, target.files.weights)
    _make_native(adapter, target)
    return EarlyExitDrafter(target.executor, adapter.config.exit_layer, adapter)


def _make_native(module: nn.Module, target: Model) -> None:
    """Lets a small module's matrices run on the native kernels where the target does."""
    from pilotfish.models.native_executor import NativeExecutor
    from pilotfish.models.native_linear import use_native_linears

    if isinstance(target.executor, NativeExecutor):
        use_native_linears(module, target.executor.threads)


def _pool(name: str, settings: DrafterSettings, target: Model) -> SuffixPool:
    """The pool of that name for this target, from the user's cache; another model's ids would mean nothing."""
    path = cache_dir() / "pools" / target.files.fingerprint[:32] / f"{name}.pool"
    return SuffixPool(name, settings.suffix_pool_tokens, path=path, fingerprint=target.files.fingerprint)
