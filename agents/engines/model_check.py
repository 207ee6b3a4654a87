"""Check that a model exists before torch, transformers or vLLM are imported."""

from __future__ import annotations

import difflib
import re
from importlib.util import find_spec
from pathlib import Path

from ...envs.checks import expand_home
from ...envs.errors import ConfigurationError
from .packaged_model import SMOLLM2, check_smollm2
from .shipped_models import NAMED_MODELS, SHIPPED_MODELS

_MODEL_NAME = re.compile(r"[\w.:-]{1,96}(/[\w.:-]{1,96})?")
"""A name on the hub, or with a tag (`llama3:8b`) on a server."""
_TIMEOUT = 10.0  # seconds
MODEL, ADAPTER = "config.json", "adapter_config.json"
"""Files that a model's and an adapter's folder contain."""


def check_model(name: str | Path, file: str = MODEL) -> None:
    """Raise unless a model can be found: a named one, a folder, or a name on the Hugging Face hub.

    An existing folder is never looked for on the hub. Neither is a name that the hub cannot have: one with two
    slashes, or one that begins with a slash, a dot or a tilde. The hub is asked once, without the retries of the
    libraries that load models.

    Args:
        name: Folder, name on the hub, or a name such as "sapling" or "smollm2"; see `NAMED_MODELS`.
        file: File that the folder or repository must contain; `MODEL` or `ADAPTER`.

    Raises:
        ConfigurationError: The model does not exist, or the hub does not answer.
    """
    if name in SHIPPED_MODELS:
        return
    if name == SMOLLM2:
        check_smollm2()
        return
    kind = "adapter" if file == ADAPTER else "model"
    if not str(name):
        raise ConfigurationError(f"the name of the {kind} is empty; pass a folder or a name on the hub.")
    folder = expand_home(name)
    if folder.is_dir():
        # transformers loads the folder of an adapter as the model that it adapts, with the adapter.
        if not ((folder / file).is_file() or (folder / ADAPTER).is_file()):
            raise ConfigurationError(f"{name}: the folder holds no {kind} (no {file}){_hint(folder, file)}")
    elif folder.exists():
        raise ConfigurationError(f"{name}: is a file; pass the folder of a {kind}.")
    elif str(name).startswith("transformers/"):
        inner = str(name).removeprefix("transformers/")
        raise ConfigurationError(f"{name}: this {kind} is named without its engine; write {inner}.")
    elif is_path(str(name)):
        raise ConfigurationError(f"{name}: there is no such folder{nearest_folder(folder)}")
    elif find_spec("huggingface_hub") is not None:
        _check_hub(str(name), file, kind)


def is_path(name: str) -> bool:
    """Return True for what can only be a path, because no model on the hub or on a server can have the name."""
    return name[:1] in "/.~" or not _MODEL_NAME.fullmatch(name)


def _hint(folder: Path, file: str) -> str:
    inner = [path.parent for path in sorted(folder.glob(f"*/{file}"))]
    return f"; did you mean {inner[0]}?" if inner else "; pass the folder that training or save_pretrained wrote."


def nearest_folder(folder: Path) -> str:
    """Return a hint at the existing folder that is nearest to a missing one, as the end of a sentence."""
    missing = list(folder.parts[-1:])
    parent = folder.parent
    while not parent.is_dir():
        missing.insert(0, parent.name)
        parent = parent.parent
    near = difflib.get_close_matches(missing[0], [path.name for path in parent.iterdir() if path.is_dir()], n=3)
    complete = [path for one in near if (path := parent.joinpath(one, *missing[1:])).is_dir()]
    return f"; did you mean {complete[0]}?" if complete else f" ({parent.resolve()} has no {missing[0]})."


def _check_hub(name: str, file: str, kind: str) -> None:
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    near = difflib.get_close_matches(name, NAMED_MODELS, n=1, cutoff=0.75)
    problem = f"there is no folder {name!r}{f' (did you mean {near[0]}?)' if near else ''}"
    shipped = "" if kind == "adapter" else f" or a shipped model: {', '.join(NAMED_MODELS)}"
    fix = f"pass a folder{shipped}."
    try:
        if any(isinstance(try_to_load_from_cache(name, cached), str) for cached in (file, ADAPTER)):
            return
    except HFValidationError:
        raise ConfigurationError(f"{problem}, and no {kind} on the Hugging Face hub can have this name.") from None
    try:
        HfApi().model_info(name, timeout=_TIMEOUT)
    except RepositoryNotFoundError:
        raise ConfigurationError(
            f"{problem}, and the Hugging Face hub has no {kind} of this name (a private one requires"
            f" `hf auth login`); {fix}"
        ) from None
    except HfHubHTTPError:
        return  # The hub answers; loading gives its reason.
    except Exception as error:  # of any type, by the HTTP library that is installed
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigurationError(
            f"{problem}, and the Hugging Face hub cannot be reached for the {kind} of this name ({reason}); {fix}"
        ) from None
