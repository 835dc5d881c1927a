# personae with the extra for networks, for a user without rights. docs/howto/container.md shows how to run it.
FROM python:3.11-slim

RUN useradd --create-home --uid 1000 personae

COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir --constraint /src/constraints.txt '/src[flower]' && rm -rf /src

USER personae
WORKDIR /home/personae
VOLUME ["/home/personae"]
ENTRYPOINT ["personae"]
CMD ["--help"]
