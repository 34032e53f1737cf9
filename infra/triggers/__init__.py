"""How a new model commit comes in: told on the command line, by a webhook, or found in a folder.

Every way ends in one request (`arrival`), which is posted in one way (`poster`).
"""
