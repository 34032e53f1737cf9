"""The engine: step processes, and what confines them.

`child` starts them and gives them jobs, `worker` is the program inside, `sandbox` its launcher.
"""
