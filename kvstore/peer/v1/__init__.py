"""The messages and the service between replicas, made from protos/kvstore/peer/v1 by protos/generate.py."""
