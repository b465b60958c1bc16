"""Hand-over to trainers: episodes and rows in the forms that other projects take, and back.

| module | trainer | gives |
|---|---|---|
| `trl` | TRL `GRPOTrainer` | a `rollout_func` that plays a seat of a scenario |
| `trl_environment` | TRL `GRPOTrainer` | an `environment_factory` of served agents |
| `trl_async` | TRL `AsyncGRPOTrainer` | `RolloutSample`, and a worker for `rollout_worker=` |
| `verl` | verl | `AgentLoopOutput`, `DataProto` |
| `verifiers` | verifiers v1 (and prime-rl's environments) | `Episode` records |
| `prime_rl` | prime-rl | `TrainingSample` |
| `areal` | AReaL | the tensors of a trajectory |
| `agent_lightning` | agent-lightning v1 | rollouts and their events |

`to_*` functions give plain values and need nothing of the trainer; what makes a trainer's own objects imports it when
it is called. `from_*` is the way back. `write` is what `agent-env episodes export --to` calls.
"""
