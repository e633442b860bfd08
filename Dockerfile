# cwdfm on a GPU:
#   docker build -t cwdfm .
#   docker run --rm --gpus all -v "$PWD:/work" cwdfm sample qm9-uniform-small --out molecules.smi
FROM pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY cwdfm cwdfm
# Triton compiles its kernels' launchers with a C compiler; RDKit draws with the X libraries.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libexpat1 libxext6 libxrender1 \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir '.[cli,molecules,plot,text]' \
    && rm -rf /src
WORKDIR /work
ENTRYPOINT ["cwdfm"]
CMD ["--help"]
