"""What the papers report of their models: *reported* figures, beside which `nearsight models` prints ours."""

from typing import NamedTuple


class Reported(NamedTuple):
    parameters: str  # as printed
    operations: str  # as printed: FLOPS (multiply and add = 2) for SASA, multiply-adds for ConViT
    top1: float  # ImageNet
    source: str


def _convit(parameters: str, operations: str, top1: float) -> Reported:
    return Reported(parameters, operations, top1, "ConViT, Table 1")


def _sasa(parameters: str, operations: str, top1: float) -> Reported:
    return Reported(parameters, operations, top1, "SASA, Table 1")


REPORTED = {
    "deit_tiny": _convit("6M", "1G", 72.2),
    "convit_tiny": _convit("6M", "1G", 73.1),
    "deit_tiny_plus": _convit("10M", "2G", 75.9),
    "convit_tiny_plus": _convit("10M", "2G", 76.7),
    "deit_small": _convit("22M", "4.3G", 79.8),
    "convit_small": _convit("27M", "5.4G", 81.3),
    "deit_small_plus": _convit("48M", "10G", 79.0),
    "convit_small_plus": _convit("48M", "10G", 82.2),
    "deit_base": _convit("86M", "17G", 81.8),
    "convit_base": _convit("86M", "17G", 82.4),
    "deit_base_plus": _convit("152M", "30G", 77.5),
    "convit_base_plus": _convit("152M", "30G", 82.5),
    "resnet26": _sasa("13.7M", "4.7B", 74.5),
    "resnet38": _sasa("19.6M", "6.5B", 76.2),
    "resnet50": _sasa("25.6M", "8.2B", 76.9),
    "sasa_resnet26_convstem": _sasa("10.3M", "4.5B", 75.8),
    "sasa_resnet38_convstem": _sasa("14.1M", "5.7B", 77.1),
    "sasa_resnet50_convstem": _sasa("18.0M", "7.0B", 77.4),
    "sasa_resnet26": _sasa("10.3M", "4.7B", 74.8),
    "sasa_resnet38": _sasa("14.1M", "6.0B", 76.9),
    "sasa_resnet50": _sasa("18.0M", "7.2B", 77.6),
}
