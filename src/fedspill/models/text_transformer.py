"""A transformer over tokens in plain linear algebra: the decoder of GPT-2 and the encoder of BERT.

Layers are called what GPT-2's are. Attention is written out, because its fused forms have no second derivative.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedspill.models.text_model import is_token


class SelfAttention(nn.Module):
    """Each token looks at the others, or, in a decoder, at those before it."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        many, length, width = x.shape
        parts = self.c_attn(x).view(many, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = real[:, None, None, :]
        if self.causal:
            seen = seen & torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        scores = query @ key.transpose(-1, -2) / sqrt(width // self.heads)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        mixed: Tensor = self.c_proj((weights @ value).transpose(1, 2).reshape(many, length, width))
        return mixed


class FeedForward(nn.Module):
    """Four times as wide inside."""

    def __init__(self, width: int, approximate: bool) -> None:
        super().__init__()
        self.approximate = "tanh" if approximate else "none"
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def inner(self, x: Tensor) -> Tensor:
        """What the second matrix reads."""
        return functional.gelu(self.c_fc(x), approximate=self.approximate)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(self.inner(x))
        return out


class Block(nn.Module):
    """Attention and feed-forward, each added to what came in; a decoder normalises before them, an encoder behind."""

    def __init__(self, width: int, heads: int, causal: bool, epsilon: float) -> None:
        super().__init__()
        self.causal = causal
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps=epsilon), nn.LayerNorm(width, eps=epsilon)
        self.attn, self.mlp = SelfAttention(width, heads, causal), FeedForward(width, approximate=causal)

    def attended(self, x: Tensor, real: Tensor) -> Tensor:
        """What the feed-forward part reads: LayerNorm of the tokens with what they looked at."""
        if self.causal:
            return self.ln_2(x + self.attn(self.ln_1(x), real))  # type: ignore[no-any-return]
        return self.ln_1(x + self.attn(x, real))  # type: ignore[no-any-return]

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        if self.causal:
            x = x + self.attn(self.ln_1(x), real)
            return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]
        x = self.ln_1(x + self.attn(x, real))
        return self.ln_2(x + self.mlp(x))  # type: ignore[no-any-return]


class TextTransformer(nn.Module):
    """Token numbers (n, length) to logits (n, classes), or (n, length, tokens) of every next token.

    A decoder reads the class off its last token, an encoder off its first.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        *,
        positions: int,
        layers: int,
        heads: int,
        causal: bool,
        outputs: int,
        every_place: bool,
        last_bias: bool,
        epsilon: float,
        std: float,
    ) -> None:
        super().__init__()
        width = embedding.embedding_dim
        self.causal, self.every_place = causal, every_place
        self.wte, self.wpe = embedding, nn.Embedding(positions, width)
        self.ln_e = nn.Identity() if causal else nn.LayerNorm(width, eps=epsilon)
        self.h = nn.ModuleList(Block(width, heads, causal, epsilon) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, eps=epsilon) if causal else nn.Identity()
        self.pooler = nn.Identity() if causal else nn.Linear(width, width)
        self.head = nn.Linear(width, outputs, bias=last_bias)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=std)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        nn.init.normal_(self.wpe.weight, std=std)
        self.wpe.weight.requires_grad_(embedding.weight.requires_grad)

    def real(self, x: Tensor) -> Tensor:
        return is_token(x, self.wte.padding_idx)

    def embed(self, x: Tensor) -> Tensor:
        """(n, length, width) what the first block reads."""
        places = torch.arange(x.shape[1], device=x.device)
        return self.ln_e(self.wte(x) + self.wpe(places))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.behind_embedding(self.embed(x), self.real(x))

    def behind_embedding(self, hidden: Tensor, real: Tensor) -> Tensor:
        """Logits from what the first block reads (n, length, width); real (n, length) says which places are texts'."""
        for block in self.h:
            hidden = block(hidden, real)
        hidden = self.ln_f(hidden)
        if not self.every_place:
            if self.causal:
                last = real.long().cumsum(1).argmax(1)  # the first place at which all tokens have been counted
                hidden = hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[2])).squeeze(1)
            else:
                hidden = torch.tanh(self.pooler(hidden[:, 0]))
        logits: Tensor = self.head(hidden)
        return logits
