"""Who runs it and where: settings, the command line, the sandbox."""
