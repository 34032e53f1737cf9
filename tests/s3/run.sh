#!/usr/bin/env bash
# The stores' tests against a real S3 server, which is started for them and stopped after them.
#
#   run.sh PYTHON [PYTEST ARGUMENT ...]
#
# Ends with 69 when there is no such server here or it doesn't start, else with pytest's status.
set -euo pipefail
python=${1:?usage: run.sh PYTHON [PYTEST ARGUMENT ...]}
shift
cd "$(dirname "$0")/../.."
for program in radosgw radosgw-admin ceph-mon ceph-osd ceph curl; do
  command -v "$program" > /dev/null && continue
  echo "no S3 server: expected $program. As root: apt-get install" \
    "--no-install-recommends radosgw ceph-mon ceph-osd ceph-common curl" >&2
  exit 69
done
folder=$(mktemp -d)
trap 'tests/s3/radosgw.sh stop "$folder"' EXIT
start() { timeout 120 tests/s3/radosgw.sh start "$folder" "${S3_PORT:-7480}"; }
# A second try, since on a busy machine a daemon may not be up in time.
if ! address=$(start || { tests/s3/radosgw.sh stop "$folder" && start; }); then
  echo "no S3 server: radosgw is installed and did not start" >&2
  exit 69
fi
echo "an S3 server of Ceph's: $(radosgw --version)"
HANDOFF_TEST_S3=$address "$python" -m pytest -m server tests/artifacts/stores/test_{store,objects,store_faults}.py tests/tasks/registry/test_ledger.py "$@"
