#!/usr/bin/env python3
"""An API server of a cluster without any object: every list is empty, and no watch ever tells anything.

empty_api_server.py PORT"""

import http.server
import json
import sys
import time
import urllib.parse

LIST = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        watches = "watch" in urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        body = b"" if watches else json.dumps(LIST).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        if watches:
            self.end_headers()
            time.sleep(3600)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
