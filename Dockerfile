# fedspill in a container, for the CPU. Build it from the root of the repository:
#
#   docker build --tag fedspill --build-arg TORCH_INDEX=ADDRESS .
#
# ADDRESS is PyTorch's own list of CPU wheels (pytorch.org, "Get Started", Compute Platform CPU). Without it the ordinary
# wheel is taken, which on Linux brings several GB for GPUs.
FROM python:3.13-slim AS build
ARG TORCH_INDEX=""
RUN python -m venv /opt/fedspill
COPY constraints.txt pyproject.toml hatch_build.py README.md LICENSE /src/
COPY src /src/src
COPY papers /src/papers
RUN if [ -n "$TORCH_INDEX" ]; then \
        /opt/fedspill/bin/pip install --no-cache-dir --index-url "$TORCH_INDEX" torch==2.13.0; \
    fi \
 && /opt/fedspill/bin/pip install --no-cache-dir --constraint /src/constraints.txt /src \
 && /opt/fedspill/bin/pip uninstall --yes pip

FROM python:3.13-slim
COPY --from=build /opt/fedspill /opt/fedspill
# Nobody in here is root. What an audit writes belongs to whom `docker run --user` says.
RUN useradd --create-home --uid 1000 fedspill
USER fedspill
WORKDIR /work
ENV PATH="/opt/fedspill/bin:$PATH" OMP_NUM_THREADS=1
ENTRYPOINT ["fedspill"]
CMD ["--help"]
