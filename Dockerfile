# PyTorch, Jupyter and torcharena, for a machine with NVIDIA's container toolkit.
# Not run: no container engine was at hand when this was written.
#
#   docker build -t torcharena .
#   docker run --gpus all --ipc=host -p 8888:8888 torcharena
#   docker run --gpus all torcharena python -c 'import torcharena; torcharena.test()'
#
# To count processes of several containers together on one GPU (docs/cluster.md), mount the
# same directory into each: -v /run/torcharena:/run/torcharena
FROM python:3.12-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# Of CUDA only headers are needed: they come as a wheel.
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
# torch.compile needs a C compiler at run time.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir "torch>=2.7" numpy matplotlib jupyterlab
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --no-deps /wheels/torcharena-*.whl && rm -r /wheels
RUN useradd --create-home user
USER user
WORKDIR /home/user
COPY --chown=user notebooks notebooks
ENV TORCHARENA_ENABLE=1
EXPOSE 8888
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--no-browser"]
