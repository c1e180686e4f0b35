"""Every error that leaves the server, in the one shape that OpenAI's clients understand."""

from __future__ import annotations

import json
import math
from typing import Any

from minserve.errors import InvalidRequest, MinserveError, RequestTooLarge
from minserve.scheduling.admission import Refuse

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


_BUSY = ("overloaded", "queue_full", "kv_pressure", "send_as_job", "upstream_unavailable")


class ApiError(Exception):
    """What a client is told: `status`, and the fields of OpenAI's error object.

    `retry_after_s` is when to try again; `may_retry=False` tells OpenAI's clients not to.
    """

    may_become_job = False
    """The work was refused for now, and would be taken as a durable job."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        may_retry: bool = True,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.may_retry = may_retry

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object, also sent as an event in the middle of a stream."""
        fields = {"message": self.message, "type": self.type}
        return {"error": {**fields, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """`Retry-After` in whole seconds, as HTTP has it, and in milliseconds for who reads it."""
        headers = {} if self.may_retry else {"x-should-retry": "false"}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(math.ceil(self.retry_after_s))
            headers["retry-after-ms"] = str(math.ceil(self.retry_after_s * 1000))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers

    def encode(self) -> bytes:
        return json.dumps(self.body).encode()


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request itself is wrong, so the same again will not do."""
    return ApiError(400, message, param=param, code=code)


def of_minserve(error: MinserveError, param: str | None = None) -> ApiError:
    """The engine's own complaints; its hint is part of the message."""
    message = f"{error}; {error.hint}" if error.hint else str(error)
    if isinstance(error, RequestTooLarge):
        return invalid(message, param, "context_length_exceeded")
    if isinstance(error, InvalidRequest):
        return invalid(message, param)
    return ApiError(500, message)


def of_refusal(refusal: Refuse) -> ApiError:
    """429 says: you, later, or less; 503 says: anybody, later."""
    is_busy = refusal.code in _BUSY
    error = ApiError(
        503 if is_busy else 429,
        f"not admitted: {refusal.why}",
        code=refusal.code,
        retry_after_s=refusal.retry_after_s,
        may_retry=refusal.retry_after_s is not None,
    )
    error.may_become_job = refusal.may_become_job
    return error
