"""What the README shows runs as it stands there."""

from __future__ import annotations

import re

from aws_cdk.assertions import Template

from tests.support import ROOT

README = (ROOT / "README.md").read_text()


def test_the_construct_by_itself_synthesises():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    scope: dict[str, object] = {}
    exec(code, scope)
    template = Template.from_stack(scope["stack"])
    template.resource_count_is("AWS::EC2::Subnet", 1)
    template.has_resource_properties("AWS::EC2::Subnet", {"AvailabilityZoneId": "use2-az1"})


def test_every_local_link_leads_somewhere():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
