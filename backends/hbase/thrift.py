"""What is used of happybase and of thriftpy2 below it. Neither has types."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import happybase.connection
import thriftpy2.thrift
import thriftpy2.transport

_service: Any = import_module("Hbase_thrift")  # which importing happybase has made

Service: Any = _service.Hbase
BatchMutation: Any = _service.BatchMutation
ColumnDescriptor: Any = _service.ColumnDescriptor
Mutation: Any = _service.Mutation
Scan: Any = _service.TScan

Client: Any = thriftpy2.thrift.TClient
Socket: Any = thriftpy2.transport.TSocket
TRANSPORTS: dict[str, Any] = happybase.connection.THRIFT_TRANSPORTS
PROTOCOLS: dict[str, Any] = happybase.connection.THRIFT_PROTOCOLS

AlreadyExists: type[Exception] = _service.AlreadyExists
ANSWERED: Any = (_service.IOError, _service.IllegalArgument, _service.AlreadyExists)
"""Errors that the server answered on purpose."""
ApplicationError: Any = thriftpy2.thrift.TApplicationException
"""The server failed while it answered, or does not know what it was asked."""
TransportError: Any = thriftpy2.transport.TTransportException
