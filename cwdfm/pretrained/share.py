"""Upload models to the Hugging Face hub, with a model card."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from cwdfm.config import to_config
from cwdfm.data.text.tokenizer import TextTokenizer
from cwdfm.errors import InputError, load_extra
from cwdfm.hub import hub_errors, hub_is_reachable
from cwdfm.version import __version__

if TYPE_CHECKING:
    from cwdfm.pretrained.model import Pretrained

_CARD = """\
---
{header}
---

# {name}

A model of cwdfm, the library of context-weighted discrete flow matching: a transformer with
{parameters:,} parameters for sequences of {length} tokens.

```python
import cwdfm

model = cwdfm.load("{repository}")
print(model.generate(n=4).texts)
```

## Method

```json
{method}
```

## Training

```json
{training}
```
"""


def model_card(trained: "Pretrained", repository: str, metadata: Mapping[str, Any]) -> str:
    """The content of README.md: metadata, an example of use, the method and the training."""
    data = load_extra("huggingface_hub", "hub").ModelCardData
    is_text = isinstance(trained.tokenizer, TextTokenizer)
    defaults: dict[str, Any] = {
        "library_name": "cwdfm",
        "tags": ["discrete-flow-matching", "text" if is_text else "chemistry"],
        "pipeline_tag": "text-generation" if is_text else None,
    }
    return _CARD.format(
        header=data(**defaults | dict(metadata)).to_yaml().strip(),
        name=repository.split("/")[-1],
        parameters=sum(x.numel() for x in trained.model.parameters()),
        length=trained.length,
        repository=repository,
        method=json.dumps(to_config(trained.method), indent=1),
        training=json.dumps(trained.card, indent=1),
    )


def upload_model(
    trained: "Pretrained",
    repository: str,
    *,
    dtype: torch.dtype | None,
    metadata: Mapping[str, Any],
    revision: str | None = None,
    private: bool | None = None,
    token: str | None = None,
    message: str = "Upload model",
) -> str:
    """Upload the files of `save_pretrained` in one commit, and return its URL.

    The repository and the branch `revision` are created if they do not exist. An existing model
    card is kept. The default `token` is the one of `hf auth login`.
    """
    api = load_extra("huggingface_hub", "hub").HfApi(
        token=token, library_name="cwdfm", library_version=__version__
    )
    if not hub_is_reachable():
        raise InputError(
            "the hub cannot be reached; check the connection, or save the model with "
            "save_pretrained and upload the folder later (hf upload OWNER/NAME FOLDER)"
        )
    with TemporaryDirectory() as temporary, hub_errors(repository, revision):
        folder = Path(temporary)
        trained.save_pretrained(folder, dtype)
        api.create_repo(repository, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        if not api.file_exists(repository, "README.md", revision=revision):
            (folder / "README.md").write_text(model_card(trained, repository, metadata))
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, revision=revision, commit_message=message
        )
    return str(commit.commit_url)
