"""Operations with fast paths: Triton kernels, numba loops and CUDA graphs, each with a fallback.

- `dispatch`: which implementation runs where (CWDFM_FUSED).
- `precision`: dtypes of products and sums, cached casts of weights.
- `random`: counter-based randomness. `categorical`: the categorical sampler.
- `head_draw`, `head_loss`: draws and losses fused with the linear head; `head_rows`: what the
  losses share.
- `reveal`: Algorithm 1's loop on a GPU.
- `attention`, `adaptive_norm`: parts of the transformer.
- `host_copy`: asynchronous copies to the host. `cuda_graph`: capture and replay.

The modules `triton_*` hold the kernels. They are imported only where they run.
"""
