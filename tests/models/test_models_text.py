"""Models that read tokens."""

import json
from pathlib import Path

import pytest
import text_kit
import torch
from safetensors.torch import save_file
from torch import Tensor

from fedspill.dataset import Examples
from fedspill.deployment.deployment import readable_by
from fedspill.errors import InputRefused, UsageError
from fedspill.federation.local import accuracy
from fedspill.models.text_transformer import TextTransformer
from fedspill.registry import make
from fedspill.training import batch_loss, gradient

NAMES = ["gpt", "bert", "recurrent", "mean-embedding"]


def built(name: str, **options: object) -> torch.nn.Module:
    data = text_kit.sentences(marked=name == "bert")
    made: torch.nn.Module = make("models", name, options).fitted_to(data).build(data.shape, 2, seed=0)
    return made.eval()


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_nothing(name: str) -> None:
    data, net = text_kit.sentences(marked=name == "bert").train, built(name)
    short = data.x[(data.x != 0).sum(1) < data.x.shape[1]][:4]
    length = int((short != 0).sum(1).max())
    assert length < data.x.shape[1]
    assert torch.allclose(net(short), net(short[:, :length]), atol=1e-6)


@pytest.mark.parametrize("name", ["gpt", "recurrent"])
def test_a_language_model_does_not_look_ahead_and_learns_each_next_token(name: str) -> None:
    data, net = text_kit.sentences().train, built(name, objective="next")
    x = data.x[:3].clone()
    before = net(x)
    x[:, -1] = 7
    assert torch.allclose(before[:, :-1], net(x)[:, :-1], atol=1e-6)
    batch = data.take(torch.arange(3))
    logits = net(batch.x)
    by_hand = [
        torch.nn.functional.cross_entropy(logits[row, place], batch.x[row, place + 1])
        for row in range(3)
        for place in range(batch.x.shape[1] - 1)
        if batch.x[row, place + 1] != 0
    ]
    assert torch.allclose(batch_loss(net, batch), torch.stack(by_hand).mean(), atol=1e-5)
    assert 0 <= accuracy(net, batch) <= 1


def test_an_encoder_cannot_predict_what_it_sees() -> None:
    with pytest.raises(UsageError, match="sees the next token"):
        make("models", "bert", {"objective": "next"})


def test_lora_trains_adapters_and_the_head_under_the_names_of_peft_and_changes_nothing_at_first() -> None:
    plain, thin = built("gpt"), built("gpt", lora_rank=4)
    x = text_kit.sentences().train.x[:3]
    assert torch.allclose(plain(x), thin(x), atol=1e-6)
    names = [name for name, parameter in thin.named_parameters() if parameter.requires_grad]
    adapters = [f"h.{i}.attn.c_attn.lora_{part}.default.weight" for i in (0, 1) for part in "AB"]
    assert sorted(names) == sorted([*adapters, "head.weight", "head.bias"])
    assert "h.0.attn.c_attn.base_layer.weight" in thin.state_dict()


def test_frozen_embeddings_are_neither_trained_nor_sent() -> None:
    sent = gradient(built("gpt", freeze_embeddings=True), text_kit.sentences().train.take(torch.arange(2)))
    assert not {"wte.weight", "wpe.weight"} & sent.keys()


def gpt2_folder(net: TextTransformer, folder: Path) -> Path:
    """The weights as Hugging Face stores a GPT-2: matrices the other way round."""
    turned = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    state = {n: t.T.contiguous() if n.endswith(turned) else t for n, t in net.state_dict().items() if "head" not in n}
    save_file({f"transformer.{name}": tensor.clone() for name, tensor in state.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": 4}), encoding="utf-8")
    return folder


def bert_folder(net: TextTransformer, folder: Path) -> Path:
    theirs = {"attn.c_proj": "attention.output.dense", "ln_1": "attention.output.LayerNorm",
              "mlp.c_fc": "intermediate.dense", "mlp.c_proj": "output.dense", "ln_2": "output.LayerNorm"}  # fmt: skip
    state, stored = net.state_dict(), {}
    segment = torch.full((2, state["wpe.weight"].shape[1]), 0.25)
    stored["embeddings.word_embeddings.weight"] = state["wte.weight"]
    stored["embeddings.position_embeddings.weight"] = state["wpe.weight"] - 0.25
    stored["embeddings.token_type_embeddings.weight"] = segment
    for part in ("weight", "bias"):
        stored[f"embeddings.LayerNorm.{part}"] = state[f"ln_e.{part}"]
        stored[f"pooler.dense.{part}"] = state[f"pooler.{part}"]
        for i in range(len(net.h)):
            three = state[f"h.{i}.attn.c_attn.{part}"].chunk(3)
            for one, tensor in zip(("query", "key", "value"), three, strict=True):
                stored[f"encoder.layer.{i}.attention.self.{one}.{part}"] = tensor
            for own, name in theirs.items():
                stored[f"encoder.layer.{i}.{name}.{part}"] = state[f"h.{i}.{own}.{part}"]
    save_file({f"bert.{name}": tensor.clone() for name, tensor in stored.items()}, folder / "model.safetensors")
    config = {"model_type": "bert", "num_attention_heads": 4}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_a_checkpoint_folder_gives_the_network_its_weights(name: str, tmp_path: Path) -> None:
    source = built(name)
    assert isinstance(source, TextTransformer)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    folder = (gpt2_folder if name == "gpt" else bert_folder)(source, tmp_path)
    data = text_kit.sentences(marked=name == "bert")
    spec = make("models", name, {"checkpoint": str(folder)}).fitted_to(data)
    loaded = spec.build(data.shape, 2, seed=9).eval()
    x = data.train.x[:3]
    assert torch.allclose(hidden(source, x), hidden(loaded, x), atol=1e-5)
    wrong = make("models", "bert" if name == "gpt" else "gpt", {"checkpoint": str(folder)}).fitted_to(data)
    with pytest.raises(InputRefused, match="this model is"):
        wrong.build(data.shape, 2, seed=0)


def hidden(net: torch.nn.Module, x: Tensor) -> Tensor:
    """What the last block gives; heads differ."""
    assert isinstance(net, TextTransformer)
    state, real = net.embed(x), net.real(x)
    for block in net.h:
        state = block(state, real)
    return net.ln_f(state)  # type: ignore[no-any-return]


def test_text_and_measured_values_are_not_mixed_up() -> None:
    text, digits = text_kit.sentences(), make("datasets", "digits").load()
    with pytest.raises(UsageError, match="is text"):
        readable_by(make("models", "mlp"), text)
    with pytest.raises(UsageError, match="reads text"):
        readable_by(make("models", "gpt"), digits)
    with pytest.raises(UsageError, match="how many tokens"):
        make("models", "gpt").build((6,), 2, seed=0)


def test_tokens_stay_tokens_on_their_way() -> None:
    data = text_kit.sentences().train
    part = Examples.join([data.take(torch.tensor([0])), data.take(torch.tensor([1]))]).to("cpu")
    assert part.x.dtype == torch.int64
    assert part.vocabulary is data.vocabulary
