"""Tokens in files: each is learned or held out once, wherever it lies, and what is wrong is said in one line."""

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch import nn

from tests.conftest import Package, Render
from tests.core.exact.test_resume import assert_stops_in_turn_change_nothing
from tests.core.tasks.test_images_and_tabular import Modules, kept_for_backward, refusal
from tests.support.forked_runs import Program
from tests.support.processes import output_of
from tests.support.training import differences

TINY = {"width": 8, "layers": 1, "heads": 2, "context": 8}
BYTES = 10**12


@pytest.fixture(scope="module")
def language(package: Package) -> Modules:
    return lambda module: package(module, task="language")


def config(language: Modules, **options: Any) -> Any:
    return language("config").Config(**TINY | options)


def test_each_token_is_learned_or_held_out_once(language: Modules, tmp_path: Path) -> None:
    """But for the first of each file, which follows no other one."""
    rng, files = random.Random(0), []
    for number, length in enumerate([1, 2, 9, 500, 0, 8 * 40 + 1]):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_bytes(rng.randbytes(length))
    data = language("data")
    parts = data.load_data(config(language, data=tuple(files)))
    assert len(parts[1]) == sum(map(len, parts)) // 20
    seen: Counter[tuple[bytes, ...]] = Counter()
    for part in parts:
        tokens, targets = part.__getitems__([*range(len(part))])
        assert tokens.shape == targets.shape == (len(part), 8)
        for row, following in zip(tokens.tolist(), targets.tolist(), strict=True):
            own = [token for token in following if token != data.PADDING]
            assert row[1 : len(own)] == own[:-1], "a target is the next token"
            assert following == own + [data.PADDING] * (8 - len(own))
            seen[bytes(row[:1]), bytes(own)] += 1
    expected = Counter(
        (text[start : start + 1], text[start + 1 : start + 9])
        for text in (file.read_bytes() for file in files)
        for start in range(0, len(text) - 1, 8)
    )
    assert seen == expected


def test_a_terabyte_takes_no_memory_and_is_resumed(language: Modules, own_project: Render, tmp_path: Path) -> None:
    file = tmp_path / "huge.u16"
    with open(file, "wb") as out:
        out.truncate(BYTES)  # sparse: it has no blocks on the disk
        out.seek(BYTES - 20)
        out.write(np.arange(10, dtype=np.uint16).tobytes())
    process = psutil.Process()
    before = process.memory_info().rss
    training, held_out = language("data").load_data(config(language, data=(file,)))
    assert len(training) + len(held_out) == -(-(BYTES // 2 - 1) // 8)
    assert len(held_out) < 3000
    training.__getitems__([*range(0, len(training), len(training) // 500)])
    last = [part[len(part) - 1] for part in (training, held_out)]
    assert ([2, *range(3, 10)], [*range(3, 10), -100]) in [(one.tolist(), other.tolist()) for one, other in last]
    assert process.memory_info().rss - before < 100 * 2**20
    options = TINY | {"data": file, "max_steps": 6, "global_batch_size": 24, "accum_steps": 2, "log_every": 2}
    whole = Program(own_project(task="language", logging="csv"), tmp_path / "whole", options)
    assert_stops_in_turn_change_nothing(whole, 3)


def test_by_default_a_run_evaluates_several_times(language: Modules) -> None:
    given = language("config").Config()
    samples, world = len(language("data").load_data(given)[0]), language("runtime.launcher").DistEnv(0, 0, 1, 1)
    sampler = language("runtime.sampling").ResumableDistributedSampler(samples, given.global_batch_size, world, 0)
    progress, evaluated = language("runtime.metrics").Progress(given, sampler), []
    while not progress.is_done():
        progress.advance(min(given.global_batch_size, samples - progress.samples_in_epoch), 0.1)
        if progress.is_evaluation_due():
            evaluated.append(progress.step)
        progress.start_next_epoch()
    assert len(evaluated) > 2
    assert evaluated == [*range(250, progress.step, 250), progress.step]


def test_what_cannot_be_learned_is_named(language: Modules, tmp_path: Path) -> None:
    few, odd, large = tmp_path / "few.txt", tmp_path / "odd.u16", tmp_path / "large.u32"
    few.write_bytes(bytes(100))
    odd.write_bytes(bytes(101))
    np.full(1000, 70_000, np.uint32).tofile(large)
    load_data = language("data").load_data

    def said(*files: Path) -> str:
        return refusal(language, lambda: load_data(config(language, data=files))[0][0])

    assert said(tmp_path / "none") == f"{tmp_path}/none cannot be read: No such file or directory"
    assert said(tmp_path) == f"{tmp_path} is a folder: name its files, such as {tmp_path}/*"
    assert said(odd) == f"{odd} has 101 bytes, which is no multiple of 2: its end is missing"
    assert said(few) == "--data has 13 windows of 8 tokens: 20 are the least"
    assert said(large) == f"{large} has the token 70000: give --vocabulary 70001, or more"
    wide = config(language, width=9)
    assert refusal(language, lambda: language("model").build_model(wide)) == "--width 9 is no multiple of --heads 2"


def test_shards_hold_what_the_tokenizer_says(language: Modules, own_project: Render, tmp_path: Path) -> None:
    texts = [tmp_path / "one.txt", tmp_path / "two.txt"]
    texts[0].write_text("a line of words\n" * 1500 + "the end")
    texts[1].write_text("and more words of others\n" * 700)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train([*map(str, texts)], trainers.BpeTrainer(vocab_size=300, show_progress=False))
    lines = [line for text in texts for line in text.read_text().splitlines(True)]
    expected = [token for line in lines for token in tokenizer.encode(line).ids]
    # As files of many models have it: what is added to each text, where texts are cut, and what fills them.
    tokenizer.post_processor = processors.TemplateProcessing(single="a $A", special_tokens=[("a", 1)])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    command: list[str | Path] = [sys.executable, "-m", "ddp_project.data", tmp_path / "shards", *texts, "--tokenizer"]
    project = own_project(task="language")
    printed = output_of([*command, tmp_path / "tokenizer.json"], project)
    [shard] = (tmp_path / "shards").iterdir()
    assert printed == f"{shard}: {len(expected)} tokens of {tokenizer.get_vocab_size()}\n"
    assert np.fromfile(shard, np.uint16).tolist() == expected
    assert len(language("data").load_data(config(language, data=(shard,), vocabulary=300))) == 2
    (tmp_path / "latin-1").write_bytes(b"caf\xe9\n")
    for folder, text, words, said in (
        ("shards", texts[0], "tokenizer.json", f"{shard} is there already: name another folder, or delete it"),
        ("new", tmp_path / "none", "tokenizer.json", f"{tmp_path}/none cannot be read: "),
        ("other", tmp_path / "latin-1", "tokenizer.json", f"{tmp_path}/latin-1 cannot be read: 'utf-8' codec"),
        ("third", texts[0], "none.json", f"{tmp_path}/none.json cannot be read: No such file"),
        ("fourth", texts[0], "one.txt", f"{tmp_path}/one.txt cannot be read: expected value"),
    ):
        wrong = [*command[:3], tmp_path / folder, text, "--tokenizer", tmp_path / words]
        assert output_of(wrong, project, code=1).startswith(f"error: {said}")
    wrong = [
        *command[:3],
        tmp_path / "half",
        texts[0],
        tmp_path / "latin-1",
        "--tokenizer",
        tmp_path / "tokenizer.json",
    ]
    output_of(wrong, project, code=1)
    assert [file.name for file in (tmp_path / "half").iterdir()] == [".00000.u16"], "a name that * leaves out"


def test_checkpointing_changes_no_gradient(language: Modules) -> None:
    gradients, kept = [], []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = language("model").build_model(config(language, layers=2, checkpointing=checkpointing))
        kept.append(kept_for_backward(model, torch.arange(240).view(30, 8)))
        gradients.append([weight.grad for weight in model.parameters()])
    assert differences(gradients[0], gradients[1]) == []
    assert kept[1] < kept[0] / 2, "fewer activations are kept"


def test_a_prediction_is_what_follows(language: Modules, tmp_path: Path) -> None:
    """With a model that says the next byte, whatever came before."""

    class Next(nn.Module):
        def __init__(self, words: int = 256) -> None:
            super().__init__()
            self.token_embedding, self.position_embedding = nn.Embedding(words, 1), nn.Embedding(8, 1)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            assert tokens.shape[1] <= 8
            return nn.functional.one_hot(tokens + 1, 257).float()

    (tmp_path / "start").write_bytes(bytes([9, 9, 5]))
    task = language("task")

    def predicted(model: nn.Module, name: str) -> Any:
        [answer] = task.predict(model, task.read_inputs(model, tmp_path / name))
        return answer

    answer = predicted(Next(), "start")
    assert answer == {"continuation": bytes(range(6, 106)).decode()}
    (tmp_path / "empty").touch()
    said = refusal(language, lambda: predicted(Next(), "empty"))
    assert said == f"{tmp_path}/empty is empty: there is nothing to continue"
    answer = predicted(Next(1000), "start")
    assert answer == {"continuation": [*range(6, 106)]}, "tokens of a tokenizer are no bytes"
    np.array([7, 9], np.uint16).tofile(tmp_path / "words.u16")
    said = refusal(language, lambda: predicted(Next(9), "words.u16"))
    assert said == f"{tmp_path}/words.u16 has the token 9, and the model knows 9: is it of another tokenizer?"
