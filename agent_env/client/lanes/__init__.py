"""The ways in which a client reaches an environment: one module a lane, one contract."""
