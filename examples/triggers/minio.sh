#!/bin/sh
# MinIO tells `handoff webhook` of each delivery.toml below models/in/ (hooks.toml: kind = "s3").
# Amazon's S3 calls no webhook by itself: use `handoff watch s3://models/in` there.
#
# In the environment of the MinIO server, such as /etc/default/minio, and not on a command line:
#
#   MINIO_NOTIFY_WEBHOOK_ENABLE_HANDOFF=on
#   MINIO_NOTIFY_WEBHOOK_ENDPOINT_HANDOFF=https://hooks.example.org/s3
#   MINIO_NOTIFY_WEBHOOK_AUTH_TOKEN_HANDOFF="Bearer <the secret that MINIO_HOOK_TOKEN holds>"
#   MINIO_NOTIFY_WEBHOOK_QUEUE_DIR_HANDOFF=/var/lib/minio/events      # kept while it is down
#
# Restart MinIO, and then, with `mc alias set minio https://minio.example.org` done:
set -eu
mc event add minio/models arn:minio:sqs::HANDOFF:webhook \
  --event put --prefix in/ --suffix delivery.toml
mc event list minio/models
