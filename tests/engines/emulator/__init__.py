"""A local CloudFormation for the demo and the tests: ministack, plus the rules that AWS enforces.

`client` runs beside the tests; everything else runs inside the server process, in an environment of its own.
It proves wiring, order, replacement and deletion. It does not prove what a service does.
"""
