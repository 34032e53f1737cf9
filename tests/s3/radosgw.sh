#!/usr/bin/env bash
# A real S3 server on the loopback interface, from Debian's packages radosgw, ceph-mon, ceph-osd:
# one monitor, one store in memory, one gateway. As root.
#
#   radosgw.sh start FOLDER [PORT]    prints http://KEY:SECRET@127.0.0.1:PORT, ready for use
#   radosgw.sh stop FOLDER            ends the three processes and removes the folder
set -euo pipefail
usage="usage: radosgw.sh start FOLDER [PORT] | stop FOLDER"
folder=$(realpath -m "${2:?$usage}")
port=${3:-7480}
export CEPH_CONF=$folder/ceph.conf

stop() {
  for name in client.rgw osd.0 mon.a; do
    pid=$(cat "$folder/run/$name.pid" 2>/dev/null) || continue
    # A number of a process that ended long ago may be another's now.
    grep -qa "$folder/ceph.conf" "/proc/$pid/cmdline" 2>/dev/null || continue
    kill "$pid"
    for _ in $(seq 50); do [ -d "/proc/$pid" ] || continue 2; sleep 0.1; done
    kill -9 "$pid" || true
  done
  rm -rf "$folder"
}

configure() {
  # 'crc secure' because without authentication the messages between them can't be encrypted, and
  # one replica because there is one disk: none.
  cat > "$folder/ceph.conf" <<CONF
[global]
fsid = $1
mon host = [v2:127.0.0.1:$((port + 1)),v1:127.0.0.1:$((port + 2))]
auth cluster required = none
auth service required = none
auth client required = none
auth allow insecure global id reclaim = false
public network = 127.0.0.0/8
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms mon client mode = crc secure
ms mon service mode = crc secure
ms mon cluster mode = crc secure
mon allow pool size one = true
mon max pg per osd = 1000
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd crush chooseleaf type = 0
run dir = $folder/run
admin socket = $folder/run/\$name.asok
pid file = $folder/run/\$name.pid
log file = $folder/log/\$name.log
[mon]
mon data = $folder/mon.\$id
mon data avail crit = 1
[osd]
osd data = $folder/osd.\$id
osd objectstore = memstore
memstore device bytes = 4294967296
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:$port
rgw dns name = localhost
CONF
}

start() {
  mkdir -p "$folder"/{run,log,mon.a,osd.0}
  trap 'echo "the S3 server did not start; the end of its logs:" >&2
        tail -n 5 "$folder"/log/*.log >&2 || true; stop' ERR
  cluster=$(cat /proc/sys/kernel/random/uuid)
  disk=$(cat /proc/sys/kernel/random/uuid)
  conf=$folder/ceph.conf
  configure "$cluster"
  monmaptool --create --clobber --fsid "$cluster" \
    --addv a "[v2:127.0.0.1:$((port + 1)),v1:127.0.0.1:$((port + 2))]" "$folder/monmap" > /dev/null
  {
    ceph-mon -c "$conf" -i a --mkfs --monmap "$folder/monmap"
    ceph-mon -c "$conf" -i a
    timeout 60 ceph osd new "$disk"
    ceph-osd -c "$conf" -i 0 --mkfs --osd-uuid "$disk"
    ceph-osd -c "$conf" -i 0
    timeout 60 ceph osd crush add osd.0 1.0 root=default host=here
    for _ in $(seq 60); do timeout 10 ceph osd stat | grep -q "1 up" && break; sleep 0.5; done
    radosgw -c "$conf" -n client.rgw
    for _ in $(seq 120); do curl -s -o /dev/null "http://127.0.0.1:$port" && break; sleep 0.5; done
    key=$(tr -d - < /proc/sys/kernel/random/uuid)
    secret=$(tr -d - < /proc/sys/kernel/random/uuid)
    timeout 60 radosgw-admin -c "$conf" user create --uid=tests --display-name=tests \
      --access-key="$key" --secret="$secret"
  } > "$folder/log/start.log" 2>&1 < /dev/null
  echo "http://$key:$secret@127.0.0.1:$port"
}

case ${1:-} in
  start) start ;;
  stop) stop ;;
  *) echo "$usage" >&2; exit 64 ;;
esac
