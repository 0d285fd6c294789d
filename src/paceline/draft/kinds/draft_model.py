"""A small causal language model with the target's tokenizer drafts token by token, with KV of its own.

This module finds and checks the model; what it does for rows is in ``_model_rows``.
"""

from __future__ import annotations

from dataclasses import replace

from ...cache.groups import BlockGroupSpec
from ...core.errors import ConfigError, DraftError, ModelError
from ...kernels.backend import TORCH_DTYPES
from ...models.artifact import ModelArtifact, open_artifact
from ...models.binding import TargetBinding, load_target
from ...models.config import decoder_config
from ...models.tokenizer import load_tokenizer
from ..artifact import LoadedDraft, LoadRequest
from ..base import Constraints, DraftProvider, DraftRows, DrawPort, TargetView
from ..vocabulary import Vocabulary, common_ids
from ._model_rows import GROUP, DraftForward, ModelRows

DEFAULT_TOKENS, MOST_TOKENS = 4, 64


class ModelDrafter(DraftProvider):
    """Drafts with ``model``, which it owns. ``ids``: it proposes ids below this only (``None`` = all that both have).

    All its layers share one block group without a window, whatever they attend to: what lies behind a row's coverage
    is never given back, so coverage may lag any distance.
    """

    id = "draft_model"
    external_tokens = True

    def __init__(self, model: TargetBinding, ids: int | None = None) -> None:
        self._model: TargetBinding | None = model
        self._ids = model.vocab_size if ids is None else ids
        self.weight_bytes = model.weight_bytes

    @property
    def model(self) -> TargetBinding:
        if self._model is None:
            raise DraftError("this drafter has been closed")
        return self._model

    def kv_groups(self, view: TargetView) -> tuple[BlockGroupSpec, ...]:
        if TORCH_DTYPES.get(view.dtype) != self.model.kv_dtype:
            raise DraftError(f"the drafter keeps its KV in {self.model.kv_dtype}, the target runs in {view.dtype}")
        layers = sorted((layer for group in self.model.kv_groups for layer in group.layers), key=lambda kv: kv.layer)
        placed = tuple(replace(layer, layer=view.num_layers + number) for number, layer in enumerate(layers))
        return (BlockGroupSpec(GROUP, placed),)

    def open(self, view: TargetView, draw: DrawPort, constraints: Constraints) -> DraftRows:
        tables = view.tables
        if tables is None or tables.store is None:
            raise DraftError("a drafter with KV of its own needs row tables over a KV store")
        self.model.attach(tables.store, view.num_layers)
        ids = min(self._ids, self.model.vocab_size, view.vocab_size)
        return ModelRows(DraftForward(self.model, tables, ids), draw)

    def close(self) -> None:
        self._model = None


def load(request: LoadRequest) -> LoadedDraft:
    """Load the model at ``request.directory`` (a directory or a GGUF file) in the target's number format.

    Raises :class:`DraftError` naming the drafter if it is damaged, of an unknown architecture or has another tokenizer.
    """
    tokens = request.settle_tokens(DEFAULT_TOKENS, MOST_TOKENS)
    name, view = str(request.directory), request.view
    try:
        artifact = open_artifact(name)
        ids = _common_ids(artifact, view, name)
        length = min(view.max_model_len, decoder_config(artifact.config, artifact.identity).max_len)
        model = load_target(artifact, view.dtype, view.device, length)
    except (ModelError, ConfigError) as error:
        raise DraftError(f"drafter {name}: {error}") from error
    return LoadedDraft(ModelDrafter(model, ids), tokens, ModelDrafter.id)


def _common_ids(artifact: ModelArtifact, view: TargetView, name: str) -> int:
    head = decoder_config(artifact.config, artifact.identity).vocab_size
    tokenizer = None if view.tokenizer is None else load_tokenizer(artifact)
    return common_ids(Vocabulary.of(view.vocab_size, view.tokenizer), Vocabulary.of(head, tokenizer), name)
