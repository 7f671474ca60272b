"""The messages of telemetry.proto, for a process that cannot choose its version of protobuf.

`telemetry_pb2` requires a protobuf at least as new as the one that generated it. vLLM's image has the version
that its other packages need, which cannot be replaced. So this module builds the messages from the schema,
which `make proto` stores beside this file. Any version of protobuf can do that, and the messages are as fast
as generated ones.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from penstock_proto.telemetry_pb2 import Drafting, PolicyFaults, StepReport
else:

    def _messages(*names: str) -> list[Any]:
        pool = DescriptorPool()
        schema = FileDescriptorSet.FromString(Path(__file__).with_suffix(".binpb").read_bytes())
        for file in schema.file:
            pool.AddSerializedFile(file.SerializeToString())
        return [GetMessageClass(pool.FindMessageTypeByName(f"penstock.v1.{name}")) for name in names]

    Drafting, PolicyFaults, StepReport = _messages("Drafting", "PolicyFaults", "StepReport")

__all__ = ["Drafting", "PolicyFaults", "StepReport"]
