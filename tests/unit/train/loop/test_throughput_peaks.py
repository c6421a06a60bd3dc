"""What a device could do: published figures by its name, and by the device that trains, not where the model lies."""

import pytest
import torch

from coordexp.model.tiny.parts import build_tokenizer
from coordexp.train.loop import throughput as flops
from coordexp.train.loop.throughput import flop_counter, peak_flops
from tests.support.tiny_model import build_shallow


@pytest.fixture
def gpu(monkeypatch):
    """Return a function that pretends a GPU of some name; what is not published is measured as 1.0."""

    def pretend(name):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        monkeypatch.setattr(flops, "_timed_peak", lambda device, dtype, num_threads: 1.0)

    return pretend


@pytest.mark.parametrize(
    ("name", "half", "single"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12, 19.5e12),
        ("NVIDIA A100 80GB PCIe", 312e12, 19.5e12),
        ("NVIDIA A10G", 70e12, 35e12),
        ("NVIDIA H100 80GB HBM3", 989e12, 67e12),
        ("NVIDIA H100 PCIe", 756e12, 51e12),
        ("NVIDIA H200", 989e12, 67e12),
        ("NVIDIA H200 NVL", 835e12, 60e12),
        ("NVIDIA GH200 480GB", 989e12, 67e12),
        ("NVIDIA GB200", 2.5e15, 80e12),
        # Other devices whose names only begin alike, and parts of one: measured.
        ("NVIDIA RTX A1000", 1.0, 1.0),
        ("NVIDIA H20", 1.0, 1.0),
        ("NVIDIA L40", 1.0, 1.0),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 1.0, 1.0),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 1.0, 1.0),
        ("NVIDIA GeForce RTX 4090 D", 1.0, 1.0),
    ],
)
def test_the_peak_of_a_gpu_by_its_name(gpu, name, half, single):
    gpu(name)
    assert peak_flops(torch.device("cuda"), torch.bfloat16) == half
    assert peak_flops(torch.device("cuda"), torch.float32) == single


def test_what_is_measured_is_measured_once_for_each_number_type():
    cpu = torch.device("cpu")
    first, other = (peak_flops(cpu, dtype) for dtype in (torch.float32, torch.float64))
    assert min(first, other) > 0
    assert (peak_flops(cpu, torch.float32), peak_flops(cpu, torch.float64)) == (first, other)


def test_a_model_that_the_trainer_will_move_is_measured_against_the_gpu(gpu):
    model = build_shallow(build_tokenizer())
    gpu("NVIDIA H100 80GB HBM3")
    assert flop_counter(model, half_precision=True, num_devices=2).peak == 2 * 989e12
    assert flop_counter(model, half_precision=False, num_devices=1).peak == 67e12
