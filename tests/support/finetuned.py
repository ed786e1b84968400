"""Writes random weights in the form of published ones, and checks what fine-tuning has made of them.

tests/nightly/test_finetuning.py runs it in a changed project, with the Python that has timm and transformers.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import default_collate

sys.path.insert(0, ".")
PRETRAINED = Path("pretrained")


def project(module: str) -> Any:
    return importlib.import_module(f"ddp_project.{module}")


def config_of(run_dir: Path) -> Any:
    return project("runtime.export").config_of(json.loads((run_dir / "config.json").read_text()))


def first_of(run_dir: Path, metric: str) -> float:
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return next(float(line[metric]) for line in lines if metric in line)


def assert_close(one: float, other: float) -> None:
    assert abs(one - other) <= 1e-5 * max(1.0, abs(other)), (one, other)


def saved(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(run_dir / "checkpoints" / "last.pt", weights_only=True)
    return found


def write_timm() -> None:
    import timm
    from safetensors.torch import save_file

    torch.manual_seed(1)
    save_file(timm.create_model("test_resnet", num_classes=1000).state_dict(), PRETRAINED / "model.safetensors")


def check_timm(began: Path, run: Path) -> None:
    from safetensors.torch import load_file

    given, own = load_file(PRETRAINED / "model.safetensors"), saved(began)["model"]
    weights = [name for name in given if not name.startswith("fc.") and "running" not in name and "num_b" not in name]
    assert all(own[f"backbone.{name}"].equal(given[name]) for name in weights)
    assert own["backbone.fc.weight"].shape[0] == 10
    rates: dict[str, float] = {}
    model = project("model").build_model(config := config_of(run))
    names = {weight: name for name, weight in model.backbone.named_parameters()}
    for group in project("task").build_optimizer(model, config).param_groups:
        rates |= dict.fromkeys([names[weight] for weight in group["params"]], group["lr_scale"])
    layers = [rates[f"{layer}.weight"] for layer in ("fc", "layer4.0.conv1", "layer1.0.conv1", "conv1.0")]
    assert layers[0] == 1
    assert layers == sorted({*layers}, reverse=True)
    named = saved(run)["optimizer"]["param_groups"]
    assert len({group["lr"] for group in named}) == len({*rates.values()}) > 4
    model.load_state_dict(saved(began)["model"])
    images, labels = default_collate([*project("data").load_data(config)[1]])
    with torch.no_grad():
        logits = model.eval()(images)
    ranks = (logits > logits.gather(1, labels[:, None])).sum(dim=1)
    assert_close(first_of(began, "epoch/validation_top5"), (ranks < 5).float().mean().item())
    assert_close(first_of(began, "epoch/validation_accuracy"), (ranks < 1).float().mean().item())


def write_detection() -> None:
    torch.manual_seed(1)
    options = project("options").Options(backbone="resnet18", classes=90)
    torch.save(project("model").build_model(options).state_dict(), PRETRAINED / "model.pth")


def check_detection(began: Path, run: Path) -> None:
    from torchmetrics.detection import MeanAveragePrecision

    given, own = torch.load(PRETRAINED / "model.pth", weights_only=True), saved(began)["model"]
    assert {name for name in own if not own[name].equal(given[name])} == {
        f"head.classification_head.cls_logits.{kind}" for kind in ("weight", "bias")
    }
    model, metric = project("model").build_model(config_of(run)), MeanAveragePrecision()
    best = torch.load(run / "checkpoints" / "best.pt", weights_only=True)
    model.load_state_dict(best["model"])
    rows = project("data").load_data(config_of(run)).evaluation
    with torch.no_grad():
        for image, objects in map(rows.__getitem__, range(len(rows))):
            metric.update(model.eval()([image]), [objects])
    expected = metric.compute()["map"].item()
    assert_close(best["progress"]["best"], expected)
    assert expected > 0, "it has found something"


def write_language() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(1)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=letters[0]).save_pretrained(PRETRAINED)
    sizes: dict[str, Any] = {"vocab_size": 256, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4}
    dropout: dict[str, Any] = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    model: Any = GPT2LMHeadModel(GPT2Config(**sizes, **dropout))
    model.save_pretrained(PRETRAINED)
    # As the files of GPT-2: without the beginning of the names, and in several shards.
    model.transformer.save_pretrained(PRETRAINED / "body", max_shard_size="40KB")
    assert len([*(PRETRAINED / "body").glob("model-*.safetensors")]) > 1


def loss_of(model: Any, config: Any) -> float:
    """Return what transformers says of all windows that are held out."""
    tokens, targets = default_collate([*project("data").load_data(config)[1]])
    rows = torch.cat([tokens[:, :1], targets], dim=1)
    with torch.no_grad():
        return float(model.eval()(input_ids=rows.clamp(min=0), labels=rows).loss)


def check_language(began: Path, run: Path) -> None:
    from transformers import AutoModelForCausalLM

    expected = loss_of(AutoModelForCausalLM.from_pretrained(PRETRAINED), config_of(run))
    assert_close(first_of(began, "epoch/validation_loss"), expected)
    trained = AutoModelForCausalLM.from_pretrained(PRETRAINED)
    best = torch.load(run / "checkpoints" / "best.pt", weights_only=True)
    trained.load_state_dict(best["model"])
    assert_close(best["progress"]["best_metrics"]["loss"], loss_of(trained, config_of(run)))


write_lora = write_language


def check_lora(began: Path, run: Path) -> None:
    from safetensors.torch import load_file

    names = saved(run)["model"].keys()
    assert names == load_file(run / "export" / "model.safetensors").keys()
    assert names
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    assert len(names) == 2 * 4 * 2, "two matrices for each of four layers in two blocks"
    whole, numbers = PRETRAINED / "model.safetensors", sum(each.numel() for each in saved(run)["model"].values())
    assert (run / "export" / "model.safetensors").stat().st_size < 4 * numbers + 4000 < whole.stat().st_size
    model = project("runtime.export").load_model(run / "export")
    tokens = torch.arange(60)[None]
    with torch.no_grad():
        adapted = model(input_ids=tokens).logits
        with model.disable_adapter():
            assert not torch.allclose(adapted, model(input_ids=tokens).logits, atol=1e-3)
        model.merge_and_unload().save_pretrained("merged")
        from transformers import AutoModelForCausalLM

        merged = AutoModelForCausalLM.from_pretrained("merged").eval()(input_ids=tokens).logits
    torch.testing.assert_close(merged, adapted, rtol=1e-4, atol=1e-5)


def write_classification() -> None:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    task: Any = importlib.import_module("tests.task")
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": len(task.WORDS), "dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2}
    dropout: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    model: Any = DistilBertForMaskedLM(DistilBertConfig(**sizes, **dropout, max_position_embeddings=16))
    for file in task.FOLDER.glob("*token*"):
        (PRETRAINED / file.name).write_text(file.read_text())
    model.save_pretrained(PRETRAINED)


def check_classification(began: Path, run: Path) -> None:
    """Each text alone, without padding, gives the loss of padded batches."""
    from safetensors.torch import load_file

    given, own = load_file(PRETRAINED / "model.safetensors"), saved(began)["model"]
    body = [name for name in own if name.startswith("distilbert.")]
    assert body
    assert all(own[name].equal(given[name]) for name in body)
    best = torch.load(run / "checkpoints" / "best.pt", weights_only=True)
    model = project("model").build_model(config := config_of(run)).eval()
    model.load_state_dict(best["model"])
    tokenizer, losses = project("data").tokenizer_of(config.pretrained), []
    rows = [json.loads(line) for line in (config.texts / "val.jsonl").read_text().splitlines()]
    with torch.no_grad():
        for row in rows:
            logits = model(input_ids=torch.tensor([tokenizer(row["text"])["input_ids"]])).logits
            losses.append(F.cross_entropy(logits, torch.tensor([row["label"]])).item())
    assert_close(best["progress"]["best_metrics"]["loss"], sum(losses) / len(losses))


if __name__ == "__main__":
    work, *folders = sys.argv[1:]
    PRETRAINED.mkdir(exist_ok=True)
    globals()[work](*map(Path, folders))
