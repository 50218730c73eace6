"""dense: ranks by the cosine between the request's vector and each tool document's vector; its encoder can learn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

from toolscout.core.option_values import Presets
from toolscout.errors import BadModel, MissingExtra
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.retrievers.base import FitProgress, FitReport
from toolscout.retrievers.document_index import ENCODER_FOLDER, WEIGHTS_FOLDER, EncoderOptions
from toolscout.retrievers.model_folder import MODEL_FILE, read_model, read_new, read_options, write_model, write_new
from toolscout.retrievers.new_tool_bonus import NewToolBonusIndex
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.training.encoder_options import EncoderTrainingOptions

# How COLT and MassTool fine-tune their encoder, before they train a network on its vectors.
_PUBLISHED: Mapping[str, Any] = MappingProxyType(
    {
        "loss": "mnrl",
        "scale": 20.0,
        "epochs": 5,
        "rate": 2e-5,
        "batch": 16,
        "mix": 0.0,
        "average": 1.0,
        "patience": 0,
        "tokens": 350,
    }
)


@dataclass(frozen=True, slots=True)
class DenseOptions(Presets, EncoderTrainingOptions, EncoderOptions):
    """`new_bonus`: added to the cosine of tools that a trained encoder has not seen in training; chosen on dev.

    `start`: the Hugging Face folder of the encoder that training begins with, "" for the default one. `tokens`: how
    many tokens of a request and of a document the trained encoder reads; 0 for the usual 128 and 96. The preset
    "published" has the settings of the first stage of COLT and MassTool.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"published": _PUBLISHED})
    start: str = ""
    tokens: int = 0
    new_bonus: float = 0.0

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        EncoderTrainingOptions.__post_init__(self)
        if not self.new_bonus >= 0:
            raise BadModel(f"new_bonus must be 0 or more, got {self.new_bonus}")
        if self.tokens and self.tokens < 3:
            raise BadModel(f"tokens must be 3 or more, or 0 for the usual numbers, got {self.tokens}")


class Dense(NewToolBonusIndex):
    """Ranks by cosine. A tool whose vector is not known yet is not searched; `pending` counts such tools.

    Training moves the tools that it sees towards their requests, so new tools score too low beside them. `new_bonus`
    makes up for that; where all tools are new, or none is, it changes nothing.
    """

    name: ClassVar[str] = "dense"
    trainable: ClassVar[bool] = True
    options: DenseOptions

    def __init__(self, options: DenseOptions | None = None, encoder: TextEncoder | None = None) -> None:
        """Start empty; the encoder is opened when it is first needed."""
        super().__init__(options or DenseOptions(), encoder)

    @property
    def trains_encoder(self) -> bool:
        """Always true: `fit` trains the encoder."""
        return True

    def _new_bonus(self) -> float:
        return self.options.new_bonus

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Train the encoder on the train splits, select on the dev splits, and export it to serve.

        The folder gets the encoder as it is served (encoder/) and as it was trained (weights/). A model of the very
        same training that is there already is used: the fit of a hybrid may have been interrupted after it.
        """
        if not data:
            raise BadModel("name at least one dataset to train on")
        if self.options.encoder:
            raise BadModel("encoder names one that is served as it is; name the weights to begin with by start")
        identity = hashlib.blake2b(digest_size=16)
        own = asdict(self.options)
        if not own["tokens"]:
            del own["tokens"]  # it came later: trainings that began without it are resumed
        identity.update(json.dumps(own, sort_keys=True).encode())
        seen = TrainedOn.of(data)
        identity.update("".join(f"{split.digest}{split.split}{split.role}" for split in seen.splits).encode())
        if not _holds(folder, identity.hexdigest()):
            self._train(data, seen, folder, identity.hexdigest(), progress)
        trained = Dense.load(folder)
        fit = trained.fit_record or {}
        self.remove(self.ids())
        self.options, self._own_encoder = trained.options, trained._own_encoder
        self.trained_on, self.fit_record = trained.trained_on, fit
        self.share(trained.encoder)
        return FitReport(fit["seconds"], fit["device"], fit["parameters"], fit["dev"])

    def _train(
        self, data: Sequence[TrainingSet], seen: TrainedOn, folder: Path, identity: str, progress: FitProgress | None
    ) -> None:
        try:
            from toolscout.training.bi_encoder import learn
        except ImportError as error:
            raise MissingExtra("training", "train") from error
        from toolscout.models.encoders.export import export

        sets = [(one.dataset, one.train, one.dev) for one in data]
        start = Path(self.options.start) if self.options.start else None
        learned = learn(sets, start, self.options, folder, identity, progress, self.options.tokens)
        export(folder / WEIGHTS_FOLDER, folder / ENCODER_FOLDER, tokens=self.options.tokens)
        options = replace(self.options, average=learned.average, new_bonus=learned.new_bonus)
        made = Dense(options, Encoder.load(folder / ENCODER_FOLDER))
        made._own_encoder = folder / ENCODER_FOLDER
        made.trained_on = seen if start is None else seen | TrainedOn.load(start)
        report = FitReport(learned.trained.seconds, learned.device, learned.parameters, learned.trained.best)
        made.fit_record = asdict(report) | {"history": learned.trained.history, "identity": identity}
        for home in (folder / WEIGHTS_FOLDER, folder / ENCODER_FOLDER):  # each may be used without the rest
            made.trained_on.save(home)
        made.save(folder)
        learned.checkpoints.remove()

    def save(self, folder: Path) -> None:
        """Write the vectors, the ids, and the encoder if it is this model's own."""
        self.begin_save(folder)()

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """Take the vectors and ids as they are now; what is returned writes them."""
        with self._lock:
            save_documents, new = self._frozen_documents(), self._new.copy()

        def finish() -> None:
            self._save_encoder(folder)
            save_documents(folder)
            if self.trained_on.splits:
                self.trained_on.save(folder)
            write_new(folder, new)
            write_model(folder, self, encoder=self._fingerprint())

        return finish

    @classmethod
    def load(cls, folder: Path, encoder: TextEncoder | None = None) -> Self:
        """Open a saved index; the encoder must be the one its vectors were made with."""
        model = read_model(folder)
        loaded = cls(read_options(DenseOptions, model), encoder)
        loaded._load_encoder(folder, encoder)
        loaded._load_documents(folder, model)
        loaded.trained_on, loaded.fit_record = TrainedOn.load(folder), model.get("fit")
        loaded._new = read_new(folder)
        return loaded


def _holds(folder: Path, identity: str) -> bool:
    """Whether the folder holds the model of the training with this identity."""
    return (folder / MODEL_FILE).is_file() and (read_model(folder).get("fit") or {}).get("identity") == identity
