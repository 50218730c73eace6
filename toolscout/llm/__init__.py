"""Language models behind one small interface: an endpoint, a model on this machine, or a script."""

from __future__ import annotations

from pathlib import Path

from toolscout.errors import BadRequest
from toolscout.llm.base import Completion, LanguageModel, Message, Usage, complete_each
from toolscout.llm.options import EndpointOptions

__all__ = ["Completion", "EndpointOptions", "LanguageModel", "Message", "Usage", "complete_each", "open_llm"]

_SCRIPT = "scripted:"


def open_llm(
    spec: str = "", *, model: str = "", options: EndpointOptions | None = None, batch: int | None = None, seed: int = 0
) -> LanguageModel:
    """Open a language model.

    "" or "smollm2" is SmolLM2 on this machine, a Hugging Face folder, a GGUF file or the folder of a trained generator
    another one: `batch` rows at once (by default as many as suit the machine), `seed` for what is drawn, and in torch
    where $TOOLSCOUT_DEVICE names a device. A URL is an OpenAI-compatible endpoint, which needs `model` and takes
    `options`; "scripted:FILE" reads its lines. A model folder of toolscout's own is opened by agent.model_loading.
    """
    if spec.lower().startswith(("http://", "https://")):
        from toolscout.llm.endpoint import Endpoint

        return Endpoint(spec, model, options)
    if spec.startswith(_SCRIPT):
        from toolscout.llm.scripted import Scripted

        return Scripted.read(spec.removeprefix(_SCRIPT))
    if model or (options is not None and options != EndpointOptions()):
        raise BadRequest("model and options are for an endpoint; give its URL, such as https://host/v1")
    if spec not in ("", "smollm2") and not Path(spec).exists():
        raise BadRequest(
            f"{spec} is no language model; name a folder or .gguf file, an endpoint's URL, scripted:FILE, or smollm2"
        )
    from toolscout.llm.finetuned import is_finetuned, open_finetuned
    from toolscout.llm.local import Local

    if is_finetuned(spec):
        return open_finetuned(spec, batch=batch, seed=seed)
    return Local.open("" if spec == "smollm2" else spec, batch=batch, seed=seed)
