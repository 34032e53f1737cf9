#!/usr/bin/env bash
# Ask every tool that can judge the stack's files here, and say what was not asked.
#
#   check.sh [FOLDER]    where the tools are; default .venv-stack/bin (`make stack-ready`), then PATH
#
# Ends with 1 when a tool found something, else with 0, also where tools are missing.
set -uo pipefail
stack=$(cd "$(dirname "$0")" && pwd)
export PATH=${1:-$stack/../../.venv-stack/bin}:$PATH
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

report() { # NAME COMMAND...: runs it and prints how it went
  local name=$1 && shift
  if "$@" > "$scratch/output" 2>&1; then
    echo "ok       $name"
  else
    echo "FAILED   $name"
    sed 's/^/         /' "$scratch/output" | tail -n 20
    failures=$((failures + 1))
  fi
}
missing() { # TOOL WHAT
  command -v "$1" > /dev/null && return 1
  echo "NOT RUN  $2 (no $1 here; make stack-ready installs it)"
}

missing hadolint "the Dockerfiles" || for file in "$stack"/images/*.Dockerfile; do
  report "hadolint $(basename "$file")" hadolint "$file"
done

# A value for every name, since compose refuses to go without.
sed -E 's/^([A-Z0-9_]+)=$/\1=placeholder/' "$stack/.env.example" > "$scratch/env"
missing docker-compose "compose.yaml" || for profile in "" gpu tell metrics tls; do
  report "docker-compose config${profile:+, profile $profile}" docker-compose \
    --env-file "$scratch/env" --file "$stack/compose.yaml" --profile "$profile" config --quiet
done
missing docker-compose "a second build worker" || report "docker-compose config, a second build worker" \
  docker-compose --env-file "$scratch/env" --file "$stack/compose.yaml" \
  --file "$stack/compose.build-2.yaml" config --quiet
refuses_without_secrets() {
  ! docker-compose --env-file /dev/null --file "$stack/compose.yaml" config --quiet 2> "$scratch/error" &&
    grep -q "see .env.example" "$scratch/error"
}
missing docker-compose "compose.yaml without secrets" ||
  report "docker-compose refuses to go without secrets" refuses_without_secrets

missing caddy "the Caddyfile" || report "caddy validate" env PREFECT_NAME=prefect.localhost \
  MLFLOW_NAME=mlflow.localhost XDG_DATA_HOME="$scratch" XDG_CONFIG_HOME="$scratch" \
  caddy validate --config "$stack/Caddyfile" --adapter caddyfile

for folder in "$stack"/kubernetes/overlays/*/; do
  overlay=$(basename "$folder")
  missing kubectl "overlay $overlay" && continue
  report "kubectl kustomize $overlay" \
    kubectl kustomize "$folder" --output "$scratch/$overlay.yaml"
  missing kubernetes-validate "the schema of overlay $overlay" ||
    report "kubernetes-validate --strict $overlay" \
      kubernetes-validate --strict "$scratch/$overlay.yaml"
done

if command -v docker > /dev/null && timeout 10 docker version > /dev/null 2>&1; then
  report "docker build --check" docker build --check --file "$stack/images/server.Dockerfile" "$stack/../.."
else
  echo "NOT RUN  building and starting (no Docker engine here)"
fi
if ! timeout 10 kubectl version > /dev/null 2>&1; then
  echo "NOT RUN  kubectl apply --dry-run=server (no cluster here)"
else
  report "kubectl apply --dry-run=server" kubectl apply --dry-run=server -f "$scratch/minio.yaml"
fi
exit $((failures > 0))
