"""Weights of a GPT-2 or BERT from a folder as Hugging Face writes it: config.json and model.safetensors, no pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedspill.errors import InputRefused
from fedspill.files import read_json, read_tensors
from fedspill.models.text_transformer import TextTransformer

# Our name of each tensor of a block to theirs. GPT-2 stores its matrices the other way round.
_GPT = {f"{layer}.{part}": f"{layer}.{part}" for layer in (
    "ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"
) for part in ("weight", "bias")}  # fmt: skip
_BERT = {
    "attn.c_proj": "attention.output.dense",
    "ln_1": "attention.output.LayerNorm",
    "mlp.c_fc": "intermediate.dense",
    "mlp.c_proj": "output.dense",
    "ln_2": "output.LayerNorm",
}
_PREFIXES = ("", "transformer.", "bert.")


def load_checkpoint(network: TextTransformer, folder: Path) -> None:
    """Copies the weights into the network; the head keeps its own where the folder has none of its size."""
    config = read_json(folder / "config.json")
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in ("gpt2", "bert"):
        raise InputRefused(f"{folder}: expected a config.json of model_type gpt2 or bert, got {str(kind)[:40]!r}.")
    if (kind == "gpt2") != network.causal:
        raise InputRefused(f"{folder} holds a {kind}; this model is {'a decoder' if network.causal else 'an encoder'}.")
    heads = config.get("n_head" if kind == "gpt2" else "num_attention_heads")
    block = network.h[0]
    if heads != block.attn.heads:  # type: ignore[union-attr]
        raise InputRefused(f"{folder} has {heads!r} heads; set the option 'heads' to it.")
    stored = read_tensors(folder / "model.safetensors")
    found = _gpt(stored, network) if kind == "gpt2" else _bert(stored, network)
    own = network.state_dict()
    for name, tensor in found.items():
        rows = own[name].shape[0]
        if name in ("wte.weight", "wpe.weight") and tensor.ndim == 2 and len(tensor) != rows:
            # Positions beyond the longest text are not needed; tokens beyond theirs keep their first weights.
            kept = min(len(tensor), rows)
            tensor = torch.cat([tensor[:kept], own[name][kept:].to(tensor.dtype)])
        if tensor.shape != own[name].shape:
            raise InputRefused(
                f"{folder}: {name} has shape {tuple(tensor.shape)}, this model has {tuple(own[name].shape)}.",
                remedy="Set 'layers', 'hidden' and 'heads' to those of config.json.",
            )
        own[name].copy_(tensor)


def _need(stored: Mapping[str, Tensor], name: str) -> Tensor:
    for prefix in _PREFIXES:
        if prefix + name in stored:
            return stored[prefix + name].float()
    raise InputRefused(f"model.safetensors lacks {name}.")


def _gpt(stored: Mapping[str, Tensor], network: TextTransformer) -> dict[str, Tensor]:
    names = {name: name for name in ("wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias")}
    for number in range(len(network.h)):
        names |= {f"h.{number}.{own}": f"h.{number}.{theirs}" for own, theirs in _GPT.items()}
    turned = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
    return {own: _need(stored, name).T if own.endswith(turned) else _need(stored, name) for own, name in names.items()}


def _bert(stored: Mapping[str, Tensor], network: TextTransformer) -> dict[str, Tensor]:
    begin = "embeddings."
    # Segments are not used here: the first one's embedding is added to every position's.
    found = {
        "wte.weight": _need(stored, f"{begin}word_embeddings.weight"),
        "wpe.weight": _need(stored, f"{begin}position_embeddings.weight")
        + _need(stored, f"{begin}token_type_embeddings.weight")[0],
        "ln_e.weight": _need(stored, f"{begin}LayerNorm.weight"),
        "ln_e.bias": _need(stored, f"{begin}LayerNorm.bias"),
        "pooler.weight": _need(stored, "pooler.dense.weight"),
        "pooler.bias": _need(stored, "pooler.dense.bias"),
    }
    for number in range(len(network.h)):
        place = f"encoder.layer.{number}."
        for part in ("weight", "bias"):
            three = [_need(stored, f"{place}attention.self.{one}.{part}") for one in ("query", "key", "value")]
            found[f"h.{number}.attn.c_attn.{part}"] = torch.cat(three)
            found |= {f"h.{number}.{own}.{part}": _need(stored, f"{place}{name}.{part}") for own, name in _BERT.items()}
    return found
