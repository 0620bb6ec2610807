"""Tools for assistants, by the Model Context Protocol: what people see, asked for by a program.

Every tool asks the HTTP API with the caller's own token, so that nothing here decides who may see
what. An answer is one JSON document of at most 4 KiB with links to pages.
"""
