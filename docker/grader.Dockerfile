# The grader: docker build -f docker/grader.Dockerfile -t minserve-grader .
#             docker run --privileged -v ./course:/course minserve-grader grade lab3
# bubblewrap makes namespaces inside the container, which needs --privileged, or your engine's
# settings for unprivileged user namespaces. Without them `grade` refuses, and says so.
FROM python:3.11-slim
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*
WORKDIR /minserve
COPY . .
RUN python -m venv .venv && .venv/bin/pip install --no-cache-dir -c constraints.txt -e ".[course]"
ENV PATH=/minserve/.venv/bin:$PATH MINSERVE_COURSE=/course
VOLUME /course
ENTRYPOINT ["python", "-m", "autograder"]
CMD ["--help"]
