# Stands in for Caddy's image: Debian's, with the same folders.
ARG BASE
FROM ${BASE}
LABEL standin=debian
RUN apt-get update \
 && apt-get install --yes --no-install-recommends caddy wget \
 && rm -rf /var/lib/apt/lists/* && mkdir /config /data
ENV XDG_CONFIG_HOME=/config XDG_DATA_HOME=/data
CMD ["caddy", "run"]
