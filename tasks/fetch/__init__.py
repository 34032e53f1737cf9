"""Fetch: an address goes in, the folder of a delivery comes out, whole or not at all.

`step` fetches by the way that fits the address: copied, unpacked, downloaded, or read out of a
commit. `send` and `receive` give a folder from machine to machine through the store.
"""
