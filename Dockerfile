# Not built by this project's checks, which have no container engine; the commands in it are those of the README.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt requirements.lock README.md LICENSE ./
COPY src ./src
# Every file is compared with its hash before it is installed.
RUN python -m venv /opt/headgate \
 && /opt/headgate/bin/pip install --no-cache-dir --require-hashes -r requirements.lock \
 && /opt/headgate/bin/pip install --no-cache-dir --no-deps -c constraints.txt .

FROM python:3.11-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/headgate --create-home headgate
COPY --from=build /opt/headgate /opt/headgate
ENV PATH=/opt/headgate/bin:$PATH PYTHONUNBUFFERED=1 HEADGATE_LOG_FORMAT=json
USER 10001
WORKDIR /var/lib/headgate
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health/live', timeout=2)"]
ENTRYPOINT ["headgate"]
# Beyond loopback headgate refuses to listen without tokens: set HEADGATE_API_TOKEN and HEADGATE_ADMIN_TOKEN.
CMD ["serve", "--host", "0.0.0.0"]
