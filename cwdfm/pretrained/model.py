"""A trained model with everything that sampling needs."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from cwdfm.config import to_config
from cwdfm.data.tokenizer import Tokenizer
from cwdfm.device import find_device
from cwdfm.errors import InputError
from cwdfm.files import replacing, write_tensors
from cwdfm.method import Flow, Method
from cwdfm.model.transformer import DiT
from cwdfm.pretrained.format import FORMAT, read_model
from cwdfm.schedule import Schedule
from cwdfm.source import Source


@dataclass(frozen=True)
class Pretrained:
    """A trained model.

    - `model`: the network, in evaluation mode.
    - `method`: how the network was trained, and so how it is sampled and scored.
    - `tokenizer`: between text and data tokens.
    - `length`: tokens per sequence in training.
    - `fix_first`: whether the first token was always given in training.
    - `card`: how the model was trained; free form, stored as JSON.
    """

    model: DiT
    method: Method
    tokenizer: Tokenizer
    length: int
    fix_first: bool = False
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        """The source of a flow; InputError for other methods."""
        return self.flow.source

    @property
    def schedule(self) -> Schedule:
        """The schedule of a flow; InputError for other methods."""
        return self.flow.schedule

    @property
    def flow(self) -> Flow:
        """The method, if it is a discrete flow; InputError otherwise."""
        if not isinstance(self.method, Flow):
            raise InputError(
                f"this needs a discrete flow, with a source and a schedule, and the model was "
                f"trained as {type(self.method).__name__}; use a model trained with method flow or "
                f"mdlm"
            )
        return self.method

    def fingerprint(self) -> str:
        """A SHA-256 of the weights and the config, equal for models that sample alike."""
        digest = hashlib.sha256(json.dumps(self._config(), sort_keys=True).encode())
        for name, weight in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(weight.contiguous().cpu().view(torch.uint8).numpy())
        return digest.hexdigest()

    def _config(self) -> dict[str, Any]:
        return {
            "model": to_config(self.model.config),
            "method": to_config(self.method),
            "tokenizer": self.tokenizer.to_json(),
            "length": self.length,
            "fix_first": self.fix_first,
        }

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Write the model to a folder, with weights in `dtype`."""
        folder = Path(folder)
        with replacing(folder / "model.safetensors") as part:
            write_tensors(part, self.model.state_dict(), dtype)
        config = {"format": FORMAT, **self._config(), "card": self.card}
        with replacing(folder / "config.json") as part:
            part.write_text(json.dumps(config, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: torch.device | str = "cpu") -> Self:
        """Read a folder that `save_pretrained` or MDLM's authors wrote; weights become float32."""
        target = find_device(device)
        trained = cls(**read_model(Path(folder)))
        trained.model.to(target)
        return trained
