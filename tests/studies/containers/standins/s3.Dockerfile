# Stands in for MinIO's image: SeaweedFS, and Caddy before it, which answers MinIO's health address.
ARG BASE
FROM ${BASE}
LABEL standin=debian
RUN apt-get update \
 && apt-get install --yes --no-install-recommends caddy curl \
 && rm -rf /var/lib/apt/lists/* && mkdir /data
COPY s3.lock /tmp/s3.lock
RUN python3 -m pip install --no-cache-dir --break-system-packages --require-hashes \
      --only-binary :all: -r /tmp/s3.lock
COPY s3.sh /usr/local/bin/entry
ENTRYPOINT ["sh", "/usr/local/bin/entry"]
