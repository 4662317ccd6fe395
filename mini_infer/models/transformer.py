"""One decoder for Qwen2 (biases on q, k, v), Qwen3 (normed q and k) and Llama: what differs is in `ModelConfig`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_infer.cache.kv_store import KVStore
from mini_infer.models.attention import AttentionMetadata, attend
from mini_infer.models.config import ModelConfig
from mini_infer.models.linear import Linear, Module, parameter
from mini_infer.models.rope import cos_sin, inverse_frequencies, rotate


class RMSNorm(Module):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019), over the last dimension.

    The quotient is rounded to the model's precision before it meets the weight, as the checkpoints were trained
    (statistics are taken in float32 at least).
    """

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.eps = eps
        self.weight = parameter(size, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * F.rms_norm(x, x.shape[-1:], eps=self.eps)


class Attention(Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = {"q_proj": q, "k_proj": kv, "v_proj": kv}
        self.qkv_proj = Linear(config.hidden_size, parts, bias=config.qkv_bias, dtype=dtype, device=device)
        self.o_proj = Linear(q, {"o_proj": config.hidden_size}, bias=config.o_bias, dtype=dtype, device=device)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype, device) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype, device) if config.qk_norm else None

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, meta: AttentionMetadata, cache: tuple[Tensor, Tensor]
    ) -> Tensor:
        heads, kv_heads = self.num_heads, self.num_kv_heads
        qkv = self.qkv_proj(x).view(x.shape[0], -1, self.head_dim)
        qk, v = qkv.split_with_sizes((heads + kv_heads, kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat((self.q_norm(qk[:, :heads]), self.k_norm(qk[:, heads:])), dim=1)
        q, k = rotate(qk, cos, sin).split_with_sizes((heads, kv_heads), dim=1)
        keys, values = cache
        keys.index_copy_(0, meta.slots, k)
        values.index_copy_(0, meta.slots, v)
        return self.o_proj(attend(q, keys, values, meta))


class MLP(Module):
    """down(silu(gate(x)) * up(x)): SwiGLU, Shazeer 2020."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        parts = {"gate_proj": inner, "up_proj": inner}
        self.gate_up_proj = Linear(hidden, parts, bias=bias, dtype=dtype, device=device)
        self.down_proj = Linear(inner, {"down_proj": hidden}, bias=bias, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class DecoderLayer(Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.self_attn = Attention(config, dtype, device)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.mlp = MLP(config, dtype, device)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, meta: AttentionMetadata, cache: tuple[Tensor, Tensor]
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, meta, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Transformer(Module):
    """The decoder and its output head. Parameters are allocated, not initialised, and take no gradient."""

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = parameter(config.vocab_size, config.hidden_size, dtype=dtype, device=device)
        self.layers = nn.ModuleList(DecoderLayer(config, dtype, device) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        tied = self.embed_tokens if config.tie_word_embeddings else None
        head = {"lm_head": config.vocab_size}
        self.lm_head = Linear(config.hidden_size, head, bias=False, dtype=dtype, device=device, weight=tied)
        # Not computed on the weights' device: the frequencies are the same to the last bit wherever they run.
        self.frequencies = inverse_frequencies(config.rope, config.head_dim).to(device)

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.dtype

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.device

    def forward(self, token_ids: Tensor, meta: AttentionMetadata, kv: KVStore, rows: Tensor | None = None) -> Tensor:
        """Hidden states after the final norm, [T, hidden], or [R, hidden] of the `rows` [R] asked for.

        `token_ids` [T] is one flat batch of all sequences; their keys and values are written into `kv`.
        """
        x = F.embedding(token_ids, self.embed_tokens)
        cos, sin = cos_sin(self.frequencies, meta.positions, self.config.rope.attention_factor, x.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, meta, kv.layer(index))
        return self.norm(x if rows is None else x[rows])

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] to [R, vocab_size], in the model's precision."""
        return self.lm_head(hidden)

    def pack(self) -> None:
        """Bring every product's weight into the layout of the hardware, once all are filled; one at a time.

        A tied head becomes a copy: the embedding is read row by row as it is.
        """
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack()

    def checkpoint_parameters(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint by their Hugging Face names, each the memory it must be copied into.

        Stacked products appear as their parts. A tied head has no tensor of its own and no name here.
        """
        found: dict[str, Tensor] = {"model.embed_tokens.weight": self.embed_tokens}
        for name, module in self.named_modules():
            if isinstance(module, RMSNorm):
                found[f"model.{name}.weight"] = module.weight
            elif isinstance(module, Linear) and module is not self.lm_head:
                layer = name.rpartition(".")[0]
                found |= {f"model.{layer}.{part}": view for part, view in module.checkpoint_parameters().items()}
        if not self.config.tie_word_embeddings:
            found |= self.lm_head.checkpoint_parameters()
        return found
