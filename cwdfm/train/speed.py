"""How much of the device a training step uses."""

import torch

from cwdfm.model.transformer import FREQUENCIES, DiTConfig

# Dense bf16 matrix products, TFLOP/s, by what the driver calls the device (makers' data sheets).
PEAK = {
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "4090": 165.0,
    "3090": 71.0,
}


def training_flops(config: DiTConfig, length: int, parameters: int) -> float:
    """Floating-point operations for one token of training, forward and backward.

    6 a parameter that multiplies (the embedding is looked up), and 12 length x width a block for
    the attention's two products. The time map and the modulations work once a sequence.
    """
    modulations = (6 * config.depth + 2) * config.width
    per_sequence = config.conditioning * (modulations + FREQUENCIES + config.conditioning)
    if config.time == "none":
        per_sequence = 0
    head = config.num_tokens * (config.width + 1)
    trunk = parameters - head - config.num_tokens * config.width - per_sequence
    # Block diffusion reads every token twice, noised and clean, and scores one of the two.
    reads = 2 if config.attention == "block" else 1
    return 6.0 * (reads * trunk + head) + reads * 12.0 * length * config.width * config.depth


def peak_flops(device: torch.device) -> float | None:
    """The device's ceiling in FLOP/s for bf16, where we know it."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((1e12 * peak for part, peak in PEAK.items() if part in name), None)
