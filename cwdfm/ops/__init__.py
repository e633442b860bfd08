"""Operations with fast paths: Triton kernels, numba loops and CUDA graphs, each with a fallback.

- `dispatch`: selects the implementation (CWDFM_FUSED).
- `precision`: dtypes of products and sums, cached casts of weights.
- `random`: counter-based randomness. `categorical`: categorical draws.
- `head_draw`, `head_loss`: draws and losses fused with the linear head; `head_rows`: the code that
  the losses share.
- `reveal`: the loop of Algorithm 1 on a GPU.
- `attention`, `adaptive_norm`, `decoder`: parts of the transformers.
- `host_copy`: asynchronous copies to the host. `cuda_graph`: capture and replay.

The modules `triton_*` contain the kernels and are imported only where they run.
"""
