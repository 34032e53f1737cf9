"""Files as all of ours are written and read: whole or not at all, held, with one meaning."""
