"""Hands out the folder `files` of a directory by HTTPS on a free port of 127.0.0.1. usage: https.py DIRECTORY"""

import functools
import http.server
import ssl
import sys

directory = sys.argv[1]
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=f"{directory}/files")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(f"{directory}/host.pem", f"{directory}/host.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
print("port", server.server_port, flush=True)
server.serve_forever()
