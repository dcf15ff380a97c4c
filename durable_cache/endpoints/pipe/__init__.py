"""Reliable pipes between two networks of caches."""

from durable_cache.endpoints.pipe.declaring import declare_reliable_pipe, refuse_loop
from durable_cache.endpoints.pipe.options import PipeOptions
from durable_cache.endpoints.pipe.pipe import PipeStatus, ReliablePipe

__all__ = ["PipeOptions", "PipeStatus", "ReliablePipe", "declare_reliable_pipe", "refuse_loop"]
