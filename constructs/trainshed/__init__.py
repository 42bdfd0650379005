"""Trainshed: constructs for the AWS ground on which foundation models train."""
