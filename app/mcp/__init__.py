"""Tools for assistants over the Model Context Protocol, with the data that pages show.

Every tool asks the HTTP API with the caller's own token, so that nothing here decides who may see
what. An answer is one JSON document of at most 4 KiB with links to pages.
"""
