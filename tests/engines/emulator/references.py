"""How one stack reads another, and in which order a stack's resources come.

ministack reads `Fn::GetStackOutput` in one region only, and also from stacks that are gone. It creates
resources in the alphabetical order of their ids, which hides a missing DependsOn as long as the names happen
to fit; AWS creates in parallel, so any order that the references allow must do.
"""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

from ministack.core.responses import get_account_id, get_region, request_scope
from ministack.services import cloudformation
from ministack.services.cloudformation import changesets, engine, handlers, stacks

_FUNCTION = "Fn::GetStackOutput"
_GONE = ("DELETE_COMPLETE", "REVIEW_IN_PROGRESS", "ROLLBACK_COMPLETE")
_READERS: tuple[ModuleType, ...] = (engine, stacks, changesets, handlers)


def install_outputs() -> None:
    """Resolve the function by region."""
    resolve = engine._resolve_refs

    def resolving(value: Any, *context: Any) -> Any:
        if not (isinstance(value, dict) and isinstance(value.get(_FUNCTION), dict)):
            return resolve(value, *context)
        request = {name: resolving(part, *context) for name, part in value[_FUNCTION].items()}
        return _output(request["StackName"], request["OutputName"], request.get("Region") or get_region())

    for module in _READERS:
        module._resolve_refs = resolving


def _output(stack_name: str, output_name: str, region: str) -> str:
    with request_scope(get_account_id(), region):
        stack = cloudformation._stacks.get(stack_name)
    if stack is None or stack["StackStatus"] in _GONE:
        raise ValueError(f"Stack {stack_name} does not exist in {region}")
    for output in stack.get("Outputs", []):
        if output["OutputKey"] == output_name:
            return output["OutputValue"]
    raise ValueError(f"Output {output_name} not found in stack {stack_name} in {region}")


def install_order(seed: int) -> None:
    """Create resources in a random order, each right after what it refers to; a seed repeats it."""

    def shuffled(resources: dict[str, Any], conditions: dict[str, Any]) -> list[str]:
        names = sorted(n for n, r in resources.items() if conditions.get(r.get("Condition"), True))
        draw, order, pending = random.Random(seed), dict[str, None](), list[str]()

        def visit(name: str) -> None:
            if name in pending:
                raise ValueError(f"Circular dependency between resources: [{', '.join(pending)}]")
            pending.append(name)
            needs = sorted(engine._extract_deps(resources[name], set(names)) - {name} - order.keys())
            for need in draw.sample(needs, len(needs)):
                if need not in order:
                    visit(need)
            order[pending.pop()] = None

        for name in draw.sample(names, len(names)):
            if name not in order:
                visit(name)
        return list(order)

    stacks._topological_sort = shuffled
