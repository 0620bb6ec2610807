"""Tools for assistants over the Model Context Protocol, with the data that pages show.

Every tool calls the HTTP API with the caller's own token, so that the API alone decides on access
rights. An answer is a JSON document of at most 4 KiB with links to pages.
"""
