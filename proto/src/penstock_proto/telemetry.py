"""The messages of telemetry.proto, for a process whose protobuf is somebody else's choice.

`telemetry_pb2` asks for a protobuf no older than the one that generated it. vLLM's image has whichever its
other packages agreed on, and nothing may be put in that one's place. So here the messages are made of the
schema itself, as `make proto` leaves it beside this file: any protobuf can, at the speed of generated ones.
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
