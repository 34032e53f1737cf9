# Stands in for PostgreSQL's own image: Debian's server, with the same user, folders and variables.
ARG BASE
FROM ${BASE}
LABEL standin=debian
RUN groupadd --gid 999 postgres \
 && useradd --uid 999 --gid 999 --home-dir /var/lib/postgresql --shell /bin/sh postgres \
 && apt-get update \
 && apt-get install --yes --no-install-recommends postgresql-15 \
 && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/15 \
 && install --directory --owner postgres --mode 0700 /var/lib/postgresql/data
ENV PATH=/usr/lib/postgresql/15/bin:$PATH PGDATA=/var/lib/postgresql/data LANG=C.UTF-8
COPY postgres.sh /usr/local/bin/entry
ENTRYPOINT ["sh", "/usr/local/bin/entry"]
CMD ["postgres"]
