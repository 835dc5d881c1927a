# personae with its extras for production, for a user without rights. docs/howto/container.md shows how to run it.
FROM python:3.11-slim

RUN useradd --create-home --uid 1000 personae

COPY requirements.lock requirements-torch.lock /src/
RUN pip install --no-cache-dir --no-deps --require-hashes \
    --requirement /src/requirements.lock --requirement /src/requirements-torch.lock

COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir --no-deps --no-index --no-build-isolation /src && rm -rf /src

USER personae
WORKDIR /home/personae
VOLUME ["/home/personae"]
ENTRYPOINT ["personae"]
CMD ["--help"]
