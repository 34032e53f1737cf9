"""The Kubernetes manifests on a cluster of one node, brought up from Debian's source."""
