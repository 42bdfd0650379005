"""An S3 server in this process, which can be told to throttle."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
)


class Throttle:
    """WSGI middleware: answers the next `left` requests of one method with 503 SlowDown."""

    def __init__(self, app):
        self.app, self.left, self.method, self.refused = app, 0, "PUT", 0

    def __call__(self, environ, start_response):
        if self.left > 0 and environ["REQUEST_METHOD"] == self.method:
            self.left -= 1
            self.refused += 1
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("503 Slow Down", [("Content-Type", "application/xml")])
            return [SLOW_DOWN]
        return self.app(environ, start_response)


@contextmanager
def s3_server(bucket: str):
    """Yields (s3://bucket, throttle); clients find the server through the environment."""
    throttle = Throttle(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, throttle, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    own = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
    }
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    made = boto3.resource("s3", region_name="us-east-1").create_bucket(Bucket=bucket)
    try:
        yield f"s3://{bucket}", throttle
    finally:
        # Content belongs to the process, not to the server: the next bucket of this name would begin with it.
        throttle.left = 0
        made.objects.delete()
        made.delete()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
        server.shutdown()
