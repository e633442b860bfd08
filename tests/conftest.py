"""One thread a worker: the tensors are small, and the workers already fill the cores."""

import torch

torch.set_num_threads(1)
