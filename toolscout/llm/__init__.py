"""Language models behind one interface: an HTTP endpoint, a model on this machine, or a script."""

from __future__ import annotations

from pathlib import Path

from toolscout.errors import BadRequest
from toolscout.llm.base import Completion, LanguageModel, Message, Usage, complete_each
from toolscout.llm.options import EndpointOptions

__all__ = ["Completion", "EndpointOptions", "LanguageModel", "Message", "Usage", "complete_each", "open_llm"]

SCRIPT = "scripted:"


def open_llm(
    spec: str = "", *, model: str = "", options: EndpointOptions | None = None, batch: int | None = None, seed: int = 0
) -> LanguageModel:
    """Open a language model.

    spec: "" or "smollm2" is SmolLM2 on this machine; a Hugging Face folder, a GGUF file or the folder of a fine-tuned
        model is another local one; a URL is an OpenAI-compatible endpoint; "scripted:FILE" reads answers from a file.
    model, options: the name of the model and the options of an endpoint.
    batch, seed: for a local model, the rows in a batch (by default chosen for the machine) and the seed of sampling.

    A local model runs on ONNX Runtime, or in torch where $TOOLSCOUT_DEVICE names a device. Raises BadRequest.
    """
    if spec.lower().startswith(("http://", "https://")):
        from toolscout.llm.endpoint import Endpoint

        return Endpoint(spec, model, options)
    if spec.startswith(SCRIPT):
        from toolscout.llm.scripted import Scripted

        return Scripted.read(spec.removeprefix(SCRIPT))
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
