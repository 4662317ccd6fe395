"""Whether a draft's tokens are the target's: ids must mean the same text to both, or every draft is noise.

Compared are the vocabularies, added tokens included, and the tokens that begin and end a text. How wide the heads of
the two models are padded does not matter, nor which tokens a tokenizer calls special.
"""

from __future__ import annotations

from collections.abc import Collection

from mini_infer.errors import UserError
from mini_infer.text.tokenizer import Tokenizer


def check_pair(
    target: Tokenizer, draft: Tokenizer, target_ends: Collection[int] = (), draft_ends: Collection[int] = ()
) -> None:
    """Raises UserError naming the first difference. `…_ends`: the end tokens that the models' configurations state."""
    difference = first_difference(target, draft)
    if difference is None and target_ends and draft_ends and not {*target_ends} & {*draft_ends}:
        difference = f"answers of the target end with id {min(target_ends)}, those of the draft with {min(draft_ends)}"
    if difference is not None:
        raise UserError(
            f"--draft {draft.name} does not fit --model {target.name}: {difference}; give a draft of the same family"
        )


def first_difference(target: Tokenizer, draft: Tokenizer) -> str | None:
    """The lowest id that does not mean the same token to both, or the role that has another id; None for equals."""
    ids = target.vocabulary()
    if ids != draft.vocabulary():
        mine, other = ({id: token for token, id in t.vocabulary().items()} for t in (target, draft))
        for id in sorted(mine.keys() | other.keys()):
            if mine.get(id) != other.get(id):
                return f"id {id} is {_named(mine.get(id))}, but {_named(other.get(id))} to the draft"
    roles = (("begin", target.bos_token, draft.bos_token), ("end", target.eos_token, draft.eos_token))
    for role, ours, theirs in roles:
        if ours is not None and theirs is not None and ours != theirs:
            return f"the {role} token is {ours!r} (id {ids[ours]}), but {theirs!r} (id {ids[theirs]}) to the draft"
    return None


def _named(token: str | None) -> str:
    return "no token" if token is None else repr(token)
