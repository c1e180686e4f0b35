"""The kinds of job that minserve itself knows."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from minserve.jobs.job import Backoff, Kind


class ReportOrder(BaseModel):
    """A document report: the ids of Northstar's questions, one section each, in this order."""

    model_config = ConfigDict(extra="forbid")
    questions: list[str] = Field(min_length=1, max_length=100)
    version: str = Field("v1", pattern="^v[12]$")


class Section(BaseModel):
    """One section of a report. `is_qualified` if it states every value that was asked for."""

    model_config = ConfigDict(extra="forbid")
    question: str
    text: str = Field(min_length=1)
    is_qualified: bool


class Report(BaseModel):
    """The result contract of a report."""

    model_config = ConfigDict(extra="forbid")
    sections: list[Section] = Field(min_length=1)
    num_qualified: int = Field(ge=0)


class ChatOrder(BaseModel):
    """The body of a chat completion, as the server takes it; a stream cannot be asked for."""

    model_config = ConfigDict(extra="allow")
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    stream: bool = Field(False, json_schema_extra={"const": False})

    def model_post_init(self, context: Any) -> None:
        if self.stream:
            raise ValueError("a job cannot stream: leave `stream` out")


class Nap(BaseModel):
    """Sleep for a while, in as many parts as wanted: to try the queue out."""

    model_config = ConfigDict(extra="forbid")
    seconds: float = Field(0.0, ge=0, le=3600)
    parts: int = Field(1, ge=1, le=1000)


REPORT = Kind(
    "northstar_report",
    "minserve.northstar.reports:write",
    ReportOrder.model_validate,
    Report.model_validate,
    Report.model_json_schema(),
    owner="reports",
    backoff=Backoff(1.0, 60.0),
)
CHAT = Kind(
    "chat_completion",
    "minserve.northstar.reports:complete_chat",
    ChatOrder.model_validate,
    contract="the answer of POST /v1/chat/completions",
    owner="batches",
    backoff=Backoff(1.0, 60.0),
)
NAP = Kind("nap", "minserve.jobs.nap:nap", Nap.model_validate, contract={"type": "number"})

KINDS = (REPORT, CHAT, NAP)
