"""Notifications: commit statuses, and short messages through a notification block of Prefect's."""
