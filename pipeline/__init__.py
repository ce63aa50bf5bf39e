"""The chain of stages from event logs to served students."""
