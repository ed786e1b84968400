"""What the check reads back of the records of a run."""

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from generator.check.train.records import read_tensorboard


def test_tensorboard_records_come_in_the_order_of_recording(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard"
    for step, name in ((3, "events.out.tfevents.1.host.9999"), (4, "events.out.tfevents.1.host.10000")):
        writer = SummaryWriter(folder)
        writer.add_scalar("train/loss", 1 / step, step)
        writer.close()
        (written,) = folder.glob("events.out.tfevents.[0-9][0-9]*")
        written.rename(folder / name)
    assert [step for step, _ in read_tensorboard(tmp_path)["train/loss"]] == [3, 4]
