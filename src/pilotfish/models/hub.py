"""Fetches a model from the Hugging Face hub, or finds it in the hub's local cache.

Owns the use of `huggingface_hub`, whose own settings (`HF_HUB_OFFLINE`, `HF_HOME`, tokens) are honoured as they are.
Knows nothing of what is in the files.
"""

import re
from pathlib import Path
from typing import Any

from pilotfish.errors import DownloadError, ModelNotFoundError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
FILES = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
)


def is_hub_id(name: str) -> bool:
    """Whether a name has the form `organisation/model`."""
    return HUB_ID.fullmatch(name) is not None


def snapshot(repo_id: str) -> Path:
    """The local directory of a hub model's newest version; fetched when it is not cached.

    Raises:
        ModelNotFoundError: the hub has no such model (or it needs access rights), or it is not cached and offline mode
            is on.
        DownloadError: the hub cannot be reached.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )
    from huggingface_hub.utils.tqdm import tqdm

    class Silent(tqdm):
        """The library prints nothing; a progress bar would."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "disable": True})  # type: ignore[no-untyped-call]

    try:
        return Path(snapshot_download(repo_id, allow_patterns=list(FILES), tqdm_class=Silent))
    except GatedRepoError:
        raise ModelNotFoundError(
            f"{repo_id} is gated: accept its terms on the hub and log in with `hf auth login`"
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise ModelNotFoundError(f"the hub has no model {repo_id!r}, or not for this user; check the name") from None
    except LocalEntryNotFoundError:
        if constants.HF_HUB_OFFLINE:
            raise ModelNotFoundError(
                f"{repo_id} is not in the hub's local cache and HF_HUB_OFFLINE is set; unset it to fetch the model"
            ) from None
        raise DownloadError(f"{repo_id} is not cached and the hub cannot be reached; check the network") from None
    # What else a failed transfer raises depends on the HTTP library underneath, which has changed before.
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DownloadError(f"{repo_id} could not be fetched: {reason}; try again") from error
