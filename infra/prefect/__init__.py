"""Prefect around the flows: deployments, automations, pools, and servers for one command."""
