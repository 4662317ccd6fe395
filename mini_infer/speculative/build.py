"""From options to a proposer: find the draft model, hold its tokenizer against the target's, choose the policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mini_infer.config import EMBEDDED, EngineConfig
from mini_infer.demo import DRAFT
from mini_infer.errors import UserError
from mini_infer.speculative.adaptive import Costs, policy_of
from mini_infer.speculative.proposer import Proposer
from mini_infer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from mini_infer.models.config import ModelConfig
    from mini_infer.models.transformer import Transformer

NO_MODEL = ("none", "ngram")
"""Words of --draft that name no model; each wins over a folder of that name."""


def find_draft(
    options: EngineConfig, target: Path, tokenizer: Tokenizer | None = None, *, progress: bool = False
) -> Path | None:
    """The folder of the draft model; None where the options name none.

    `target` is the folder of the target, `tokenizer` its tokenizer where that is loaded already.
    Raises UserError where there is no such model, and where its tokens are not the target's.
    """
    if options.drafter in NO_MODEL:
        return None
    from mini_infer.models.config import ModelConfig
    from mini_infer.models.hub import resolve
    from mini_infer.speculative.pairing import check_pair

    try:
        folder = DRAFT if options.drafter == EMBEDDED else resolve(options.drafter, progress=progress)
        theirs, ends = Tokenizer.from_folder(folder), ModelConfig.from_folder(folder).eos_token_ids
    except UserError as error:
        raise UserError(f"--draft: {error}") from None
    ours = tokenizer or Tokenizer.from_folder(target)
    check_pair(ours, theirs, ModelConfig.from_folder(target).eos_token_ids, ends)
    return folder


def build_proposer(
    options: EngineConfig,
    vocab_size: int,
    draft: tuple[Transformer, ModelConfig] | None = None,
    *,
    num_blocks: int = 0,
    device: torch.device | str = "cpu",
) -> Proposer | None:
    """The proposer that `options.drafter` names, with the policy of `options.draft_tokens`; None for "none".

    Args:
        vocab_size: the target's.
        draft: the loaded draft model; its KV gets `num_blocks` blocks of `options.block_size` on `device`, as the
            target's has.

    Raises ValueError where the options name a model and none is given.
    """
    if options.drafter == "none":
        return None
    k = None if options.draft_tokens == "auto" else options.draft_tokens
    policy = policy_of(k, Costs(), drafts_free=options.drafter == "ngram")
    if options.drafter == "ngram":
        from mini_infer.speculative.prompt_lookup import PromptLookup

        return PromptLookup(policy)
    if draft is None:
        raise ValueError(f"options name the draft model {options.drafter!r}: load it and pass it on (see build_engine)")
    from mini_infer.models.runner import ModelRunner
    from mini_infer.speculative.draft_model import DraftModel

    model, config = draft
    return DraftModel(ModelRunner(model, config, num_blocks, options.block_size, device), policy, vocab_size)
