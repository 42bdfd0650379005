"""The CDK app and what it deploys together: wiring and grants only."""
