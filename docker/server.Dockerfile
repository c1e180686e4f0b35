# The server, on a CPU: docker build -f docker/server.Dockerfile -t minserve .
#                       docker run -p 8000:8000 -v ./keys.json:/keys.json:ro minserve --keys /keys.json
# For a GPU, leave the index line out: pip then installs torch with CUDA; run with --gpus all.
FROM python:3.11-slim AS build
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY minserve minserve
COPY data data
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir -c constraints.txt .

FROM python:3.11-slim
COPY --from=build /venv /venv
RUN useradd --create-home minserve && mkdir /home/minserve/data && chown minserve /home/minserve/data
USER minserve
ENV PATH=/venv/bin:$PATH MINSERVE_HOME=/home/minserve/data OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=2000
VOLUME /home/minserve/data
EXPOSE 8000
HEALTHCHECK CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=5)"
# Without --keys it refuses to listen on anything but loopback.
ENTRYPOINT ["minserve", "serve", "--host", "0.0.0.0", "--port", "8000"]
