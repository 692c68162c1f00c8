"""The messages and services for clients and operators, made from protos/kvstore/v1 by protos/generate.py."""
