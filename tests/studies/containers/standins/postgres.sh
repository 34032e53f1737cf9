# A cluster in PGDATA, made where there is none as POSTGRES_* say, and the command as its user.
set -eu
if [ "$(id -u)" = 0 ]; then
  chown postgres "$PGDATA"
  chmod 0700 "$PGDATA"
  exec setpriv --reuid=postgres --regid=postgres --init-groups sh "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  printf '%s\n' "$POSTGRES_PASSWORD" > /tmp/password
  # shellcheck disable=SC2086 - these are several words
  initdb --username=postgres --pwfile=/tmp/password ${POSTGRES_INITDB_ARGS:-}
  rm /tmp/password
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
fi
exec "$@" -c listen_addresses='*'
