"""`Pretrained`, a trained model with everything that sampling needs, and `load`."""

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
from cwdfm.errors import (
    InputError,
    check_bool,
    check_instance,
    check_integer,
    reject_options,
    require,
)
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
from cwdfm.pretrained.text_tokenizer import LoadOptions, find_dtype
from cwdfm.schedule import Schedule
from cwdfm.solver import Samples
from cwdfm.source import Source

BUNDLED = Path(__file__).parent.parent / "bundled"


@dataclass(frozen=True)
class Pretrained:
    """A trained model: the network, its method and its tokenizer."""

    model: Any  # the network in eval mode: a DiT, or a module that follows the protocol
    method: Method  # the training method, which determines sampling and scoring
    tokenizer: Tokenizer  # converts between text and data tokens
    length: int  # tokens per sequence in training
    fix_first: bool = False  # whether the first token was given in training
    card: dict[str, Any] = field(default_factory=dict)  # model card, stored as JSON

    def __post_init__(self) -> None:
        check_instance("method", self.method, Method, "Flow(MaskSource(30), Linear())")
        example = "data.ByteTokenizer(), or one of your own (see docs/extending.md)"
        check_instance("tokenizer", self.tokenizer, Tokenizer, example)
        check_integer("length", self.length)
        check_bool("fix_first", self.fix_first)
        if self.tokenizer.vocab_size > self.method.num_tokens:
            raise InputError(
                f"the tokenizer has {self.tokenizer.vocab_size} ids, but {self.method} only "
                f"{self.method.num_tokens}; use the tokenizer that encoded the training data"
            )
        self.model.trained_length = self.length

    @property
    def source(self) -> Source:
        """The source of a flow; raises InputError for other methods."""
        return self.flow.source

    @property
    def schedule(self) -> Schedule:
        """The schedule of a flow; raises InputError for other methods."""
        return self.flow.schedule

    @property
    def flow(self) -> Flow:
        """The method if it is a discrete flow; raises InputError otherwise."""
        return flow_of(self.method)

    def generate(self, solver: object = None, **options: Any) -> Samples:
        """Sample sequences; see `cwdfm.generate`. `texts` of the result are the decoded samples."""
        return generate(self, solver, **options)

    def likelihood(self, texts: Sequence[str], **options: Any) -> DatasetLikelihood:
        """Compute the likelihood of texts, or a bound on it; see `text_likelihood`.

        The texts get the start, end and padding tokens of training. Text models score them as one
        stream of documents, cut into windows.
        """
        return text_likelihood(self, texts, **options)

    def to(self, device: torch.device | str) -> Self:
        """Move the network to a device and return this model."""
        self.model.to(find_device(device))
        return self

    def fingerprint(self) -> str:
        """SHA-256 of the weights and the config: equal for models that give the same samples."""
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
        """Write the model to a folder, optionally converting the weights to a floating `dtype`.

        For a custom network, the name of its class and the keyword arguments in its attribute
        `config` are stored. To load it, pass the class to `cwdfm.load`.
        """
        floating = isinstance(dtype, torch.dtype) and dtype.is_floating_point
        require(
            dtype is None or (floating and dtype.itemsize > 1),
            "dtype",
            "be a float type of 16 bits or more",
            dtype,
        )
        # A JSON round trip turns tuples into lists and keys into strings, as when reading.
        config = json.loads(json.dumps({"format": FORMAT, **self._config(), "card": self.card}))
        weights = Path(folder, "model.safetensors")
        with replacing(weights) as temporary:
            write_tensors(temporary, self.model.state_dict(), dtype)
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

        A new repository gets a model card. `metadata` adds fields to its header, such as
        {"license": "apache-2.0"}. See `upload_model` for `revision`, `private`, `token` and
        `message`.
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
        """Load a folder of `save_pretrained` or of another project, or a model on the hub.

        The weights of a DiT are converted to float32. See `load` for `network`.
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
    dtype: torch.dtype | str | None = None,
    block: int | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """Load a `Pretrained`, or a `LanguageModel` such as LLaDA, Dream or BERT.

    Args:
        name_or_folder: A bundled model, a folder (also from other projects), or a model on the hub,
            `owner/name` or `owner/name@revision`. For the folder of a training run, the trained
            model is loaded, or else the newest checkpoint.
        device: The device to load it on.
        revision: The branch, tag or commit of a model on the hub.
        network: For a model saved with a custom network: its class, a function of the stored
            arguments, or an import path `package.module:Class`. Without it, classes named in files
            are never imported.
        dtype: The dtype of a language model's weights, such as torch.bfloat16 or "bfloat16". The
            default, also "auto", is the dtype of the files.
        block: The tokens per block, for language models published with several, such as SDAR.
        trust_remote_code: Execute Python code from the repository of a language model. Only LLaDA2
            and mixtures of experts need this. Read the code first. A model on the hub also requires
            a commit as `revision`.
    """
    check_bool("trust_remote_code", trust_remote_code)
    dtype = find_dtype(dtype)
    if trust_remote_code:
        repository, _, tag = str(name_or_folder).partition("@")
        check_remote_code(repository, tag or revision, trust_remote_code)
    folder = _local_folder(name_or_folder, revision, code=trust_remote_code)
    if (config := _language_config(folder)) is not None:
        reject_options("for custom networks", network=network)
        options = LoadOptions(find_device(device), dtype, block, trust_remote_code)
        return read_language_model(folder, config, options)
    if dtype is not None or block is not None or trust_remote_code:
        raise InputError(
            f"dtype, block and trust_remote_code apply to language models of other projects, which "
            f"{str(name_or_folder)!r} is not; omit them",
            fields=("dtype", "block", "trust_remote_code"),
        )
    return load_trained(folder, device, network=network)


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
    """Load a `Pretrained`; raises InputError for a language model."""
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
            f"{folder} is a training run without a checkpoint; continue the run until it writes "
            f"one (see checkpoint_every)",
            fields=("checkpoint_every",),
        )
    return Pretrained.from_pretrained(folder, device, network=network)


def unfinished_steps(name_or_folder: str | Path, trained: Pretrained) -> tuple[int, int] | None:
    """(steps done, steps planned) if `load` used a checkpoint of an unfinished run, else None.

    Also None for a checkpoint given by its own path, and for a run that completed its steps but did
    not save its model.
    """
    if not Path(name_or_folder).is_dir() or _model_folder(name_or_folder) is not None:
        return None
    match trained.card:
        case {"steps": int(done), "config": {"optimizer": {"steps": int(planned)}}}:
            pass
        case {"steps": int(done), "recipe": {"steps": int(planned)}}:  # card of an older version
            pass
        case _:
            return None
    return (done, planned) if done < planned else None


def _local_folder(name_or_folder: str | Path, revision: str | None, *, code: bool = False) -> Path:
    """The folder of a model, which may be bundled, local, or downloaded from the hub."""
    valid, names = isinstance(name_or_folder, str | Path), ", ".join(bundled_models())
    require(valid, "the model", f"be a folder or one of {names}", name_or_folder)
    name = str(name_or_folder)
    bundled = BUNDLED / name if name in bundled_models() else None
    if bundled is not None or Path(name).is_dir():
        reject_options("for models on the hub", revision=revision)
        return bundled or Path(name)
    neither = f"{name!r} is neither a folder nor a bundled model ({names})"
    repository, _, tag = name.partition("@")
    if not is_hub_name(repository):
        raise InputError(f"{neither}; models on the hub have names of the form owner/name")
    try:
        return download_model(repository, tag or revision, code=code)
    except InputError as error:
        message = f"{neither}, and cannot be loaded from the hub: {error}"
        raise InputError(message, fields=error.fields) from error


def _model_folder(name_or_folder: str | Path) -> Path | None:
    """The folder of a saved model or of a finished run; None otherwise."""
    folders = (Path(name_or_folder), Path(name_or_folder) / "model")
    return next((folder for folder in folders if (folder / "config.json").exists()), None)
