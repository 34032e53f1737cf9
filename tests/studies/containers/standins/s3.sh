# MinIO's user and ports, carried out by SeaweedFS: a put with If-None-Match is refused where it must.
set -eu
export HOME=/tmp XDG_CONFIG_HOME=/tmp XDG_DATA_HOME=/tmp
cat > /tmp/users.json <<END
{"identities": [{"name": "root", "actions": ["Admin", "Read", "Write", "List", "Tagging"],
  "credentials": [{"accessKey": "$MINIO_ROOT_USER", "secretKey": "$MINIO_ROOT_PASSWORD"}]}]}
END
cat > /tmp/Caddyfile <<END
{
	admin off
	auto_https off
}
:9000 {
	handle /minio/health/* {
		rewrite * /healthz
		reverse_proxy 127.0.0.1:8333
	}
	handle {
		reverse_proxy 127.0.0.1:8333
	}
}
END
weed -logtostderr=true server -ip=127.0.0.1 -dir=/data -volume.max=0 \
  -master.volumeSizeLimitMB=1024 -filer -s3 -s3.port=8333 -s3.config=/tmp/users.json &
exec caddy run --config /tmp/Caddyfile --adapter caddyfile
