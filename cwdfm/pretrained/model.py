"""A trained model with everything that sampling needs, loaded by name or path."""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from cwdfm.config import to_config
from cwdfm.data.tokenizer import Tokenizer
from cwdfm.device import find_device
from cwdfm.errors import InputError, check_bool, reject_options, require
from cwdfm.files import read_json, replacing, write_json, write_tensors
from cwdfm.generation import generate
from cwdfm.hub import check_remote_code, download_model, is_hub_name
from cwdfm.likelihood.dataset import DatasetLikelihood, text_likelihood
from cwdfm.method import Flow, Method
from cwdfm.method.flow import flow_of
from cwdfm.pretrained.format import FORMAT, digests, read_model
from cwdfm.pretrained.language import is_language_model, read_language_model
from cwdfm.pretrained.own import Builder, network_config
from cwdfm.pretrained.published import is_published
from cwdfm.pretrained.share import upload_model
from cwdfm.pretrained.text_tokenizer import LoadOptions
from cwdfm.schedule import Schedule
from cwdfm.solver import Samples
from cwdfm.source import Source

BUNDLED = Path(__file__).parent.parent / "bundled"


@dataclass(frozen=True)
class Pretrained:
    """A trained model."""

    model: Any  # the network, in evaluation mode: a DiT, or a module that follows the protocol
    method: Method  # how the network was trained, and so how it is sampled and scored
    tokenizer: Tokenizer  # between text and data tokens
    length: int  # tokens per sequence in training
    fix_first: bool = False  # whether the first token was always given in training
    card: dict[str, Any] = field(default_factory=dict)  # how it was trained; stored as JSON

    def __post_init__(self) -> None:
        self.model.trained_length = self.length

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
        return flow_of(self.method)

    def generate(self, solver: object = None, **options: Any) -> Samples:
        """Sample sequences: see `cwdfm.generate`. Their `texts` are the decoded samples."""
        return generate(self, solver, **options)

    def likelihood(self, texts: Sequence[str], **options: Any) -> DatasetLikelihood:
        """The likelihood of texts, or a bound on it: see `text_likelihood`.

        The texts get the start, end and padding tokens that the model was trained with; text models
        score them as one stream of documents, cut into windows.
        """
        return text_likelihood(self, texts, **options)

    def to(self, device: torch.device | str) -> Self:
        """Move the network to a device; returns this model."""
        self.model.to(find_device(device))
        return self

    def fingerprint(self) -> str:
        """A SHA-256 of the weights and the config, equal for models that sample alike."""
        digest = hashlib.sha256(json.dumps(self._config(), sort_keys=True).encode())
        for name, weight in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(weight.contiguous().cpu().view(torch.uint8).numpy())
        return digest.hexdigest()

    def _config(self) -> dict[str, Any]:
        return {
            "model": network_config(self.model),
            "method": to_config(self.method),
            "tokenizer": self.tokenizer.to_json(),
            "length": self.length,
            "fix_first": self.fix_first,
        }

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype | None = None) -> None:
        """Write the model to a folder, with weights in `dtype`, a floating-point type.

        The default is to keep the dtype. A network of your own class is stored by the name of the
        class and the keyword arguments in its attribute `config`; pass the class to `cwdfm.load`.
        """
        floating = isinstance(dtype, torch.dtype) and dtype.is_floating_point
        require(
            dtype is None or (floating and dtype.itemsize > 1),
            "dtype",
            "be a float type of 16 bits or more",
            dtype,
        )
        # As JSON reads them: tuples become lists, and keys strings.
        config = json.loads(json.dumps({"format": FORMAT, **self._config(), "card": self.card}))
        weights = Path(folder, "model.safetensors")
        with replacing(weights) as part:
            write_tensors(part, self.model.state_dict(), dtype)
        config["sha256"] = digests(weights, config)
        write_json(Path(folder, "config.json"), config)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        dtype: torch.dtype | None = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> str:
        """Upload the model to the hub as `owner/name`, and return the URL of the commit.

        A new repository gets a model card. `metadata` adds to its header, for example
        {"license": "apache-2.0"}. For `revision`, `private`, `token` and `message` see
        `upload_model`.
        """
        return upload_model(self, repo_id, dtype=dtype, metadata=metadata or {}, **options)

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | Path,
        device: torch.device | str = "cpu",
        *,
        revision: str | None = None,
        network: Builder | None = None,
    ) -> Self:
        """Read a folder of `save_pretrained` or of another project, or a model of the hub.

        Weights of a DiT become float32. For `network` see `load`.
        """
        target = find_device(device)
        trained = cls(**read_model(_local_folder(name_or_folder, revision), network))
        trained.model.to(target)
        return trained


def bundled_models() -> list[str]:
    """The names of the models that come with the library."""
    return sorted(path.name for path in BUNDLED.iterdir() if (path / "config.json").exists())


def load(
    name_or_folder: str | Path,
    device: torch.device | str = "cpu",
    *,
    revision: str | None = None,
    network: Builder | None = None,
    dtype: torch.dtype | None = None,
    block: int | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """Load a `Pretrained`, or a `LanguageModel` such as LLaDA, Dream or BERT.

    Args:
        name_or_folder: A bundled model, a folder (also of other projects), or a model of the hub,
            `owner/name` or `owner/name@revision`. The folder of a training run gives its trained
            model, or else its newest checkpoint.
        device: Where to put it.
        revision: The branch, tag or commit of a model of the hub.
        network: The class of the network, for a model saved with a network of your own: the class
            itself, a function of the stored arguments, or an import path `package.module:Class`.
            Without it, a class that a file names is never imported.
        dtype: The dtype of a language model's weights. The default is that of the files.
        block: The tokens per block of a language model that exists with several, such as SDAR.
        trust_remote_code: Run the Python code of a language model. Few need it: LLaDA2 and mixtures
            of experts. Read the code first; a model of the hub also needs the commit as `revision`.
    """
    check_bool("trust_remote_code", trust_remote_code)
    if trust_remote_code:
        repository, _, tag = str(name_or_folder).partition("@")
        check_remote_code(repository, tag or revision, trust_remote_code)
    if isinstance(name_or_folder, str | Path) and str(name_or_folder) not in bundled_models():
        folder = _local_folder(name_or_folder, revision, code=trust_remote_code)
        if (config := _language_config(folder)) is not None:
            reject_options("for networks of your own", network=network)
            options = LoadOptions(find_device(device), dtype, block, trust_remote_code)
            return read_language_model(folder, config, options)
    if dtype is not None or block is not None or trust_remote_code:
        raise InputError(
            f"dtype, block and trust_remote_code are for language models of other projects, and "
            f"{str(name_or_folder)!r} is none; omit them",
            fields=("dtype", "block", "trust_remote_code"),
        )
    return load_trained(name_or_folder, device, revision=revision, network=network)


def _language_config(folder: Path) -> dict[str, Any] | None:
    """The config.json of a folder, if it describes a language model."""
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError):
        return None  # reported by `load_trained`
    if not isinstance(config, dict) or "format" in config or is_published(config):
        return None
    return config if is_language_model(config) else None


def load_trained(
    name_or_folder: str | Path,
    device: torch.device | str = "cpu",
    *,
    revision: str | None = None,
    network: Builder | None = None,
) -> Pretrained:
    """Load a `Pretrained`; InputError for a language model."""
    named = isinstance(name_or_folder, str | Path)
    require(
        named, "the model", f"be a folder or one of {', '.join(bundled_models())}", name_or_folder
    )
    device = find_device(device)
    folder = _local_folder(name_or_folder, revision)
    if (found := _model_folder(folder)) is not None:
        return Pretrained.from_pretrained(found, device, network=network)
    checkpoints = sorted(folder.glob("checkpoints/step-*"), reverse=True)
    for checkpoint in checkpoints:
        try:
            return Pretrained.from_pretrained(checkpoint, device)
        except InputError as error:
            if checkpoint == checkpoints[-1]:
                raise
            warnings.warn(f"{error}; using the previous one", stacklevel=2)
    if (folder / "recipe.json").exists():
        raise InputError(
            f"{folder} is a training run without a checkpoint; continue it to its first checkpoint "
            f"(see checkpoint_every)",
            fields=("checkpoint_every",),
        )
    return Pretrained.from_pretrained(folder, device, network=network)


def unfinished_steps(name_or_folder: str | Path, trained: Pretrained) -> tuple[int, int] | None:
    """(steps done, steps planned) if `load` took a checkpoint of an unfinished run, else None.

    None also for a checkpoint that was given by its own path, and for a run that completed its
    steps but did not save its model.
    """
    if not Path(name_or_folder).is_dir() or _model_folder(name_or_folder) is not None:
        return None
    match trained.card:
        case {"steps": int(done), "config": {"optimizer": {"steps": int(planned)}}}:
            pass
        case {"steps": int(done), "recipe": {"steps": int(planned)}}:  # an older version's card
            pass
        case _:
            return None
    return (done, planned) if done < planned else None


def _local_folder(name_or_folder: str | Path, revision: str | None, *, code: bool = False) -> Path:
    """The folder itself, or that of a bundled model, or of one that is downloaded from the hub."""
    name = str(name_or_folder)
    bundled = BUNDLED / name if name in bundled_models() else None
    if bundled is not None or Path(name).is_dir():
        reject_options("for models of the hub", revision=revision)
        return bundled or Path(name)
    neither = f"{name!r} is neither a folder nor a bundled model ({', '.join(bundled_models())})"
    repository, _, tag = name.partition("@")
    if not is_hub_name(repository):
        raise InputError(f"{neither}; a model of the hub has a name of the form owner/name")
    try:
        return download_model(repository, tag or revision, code=code)
    except InputError as error:
        message = f"{neither}, and cannot be loaded from the hub: {error}"
        raise InputError(message, fields=error.fields) from error


def _model_folder(name_or_folder: str | Path) -> Path | None:
    """The folder of a saved model or of a finished run; None otherwise."""
    folders = (Path(name_or_folder), Path(name_or_folder) / "model")
    return next((folder for folder in folders if (folder / "config.json").exists()), None)
