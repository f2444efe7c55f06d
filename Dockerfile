# Not built by this project's checks, which have no container engine; the commands in it are those of the README.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt requirements.lock README.md LICENSE ./
COPY packages ./packages
COPY apps ./apps
COPY src ./src
# Every file is compared with its hash before it is installed.
RUN python -m venv /opt/paceline \
 && /opt/paceline/bin/pip install --no-cache-dir --require-hashes -r requirements.lock \
 && /opt/paceline/bin/pip install --no-cache-dir --no-deps -c constraints.txt . ./packages/queue ./apps/payments ./apps/sms

FROM python:3.11-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/paceline --create-home paceline
COPY --from=build /opt/paceline /opt/paceline
ENV PATH=/opt/paceline/bin:$PATH PYTHONUNBUFFERED=1 PACELINE_LOG_FORMAT=json
USER 10001
WORKDIR /var/lib/paceline
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health/live', timeout=2)"]
ENTRYPOINT ["paceline"]
# Beyond loopback paceline refuses to listen without tokens: set PACELINE_API_TOKEN and PACELINE_ADMIN_TOKEN.
CMD ["serve", "--host", "0.0.0.0"]
