"""Options of components, read from their signatures by ``topologies.schema``."""

from __future__ import annotations

from topologies.schema import LARGEST as LARGEST
from topologies.schema import ComponentOf as ComponentOf
from topologies.schema import Parameter as Option
from topologies.schema import check_options as check_options
from topologies.schema import check_value as check_value
from topologies.schema import describe as describe
from topologies.schema import options_of as options_of
from topologies.schema import shown as shown

__all__ = ["Option"]
