"""A local CloudFormation for the demo and the tests: ministack, plus the rules AWS enforces on what we deploy.

The package has two sides. `client` runs beside the tests; everything else runs inside the server process, in an
environment of its own. It proves wiring, order, replacement and deletion; it does not prove what a service does.
"""
