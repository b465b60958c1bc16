"""Who can work with whom: needs and offers on cards, matched by rules that explain themselves."""

from agent_env.matchmaking.candidate import Candidate, Liveness, candidate_of
from agent_env.matchmaking.findings import Degree, Finding
from agent_env.matchmaking.matchmaker import Matchmaker
from agent_env.matchmaking.pairing import choose, matchmaker_of
from agent_env.matchmaking.query import SPEAKS, Caller, Credentials
from agent_env.matchmaking.report import HEADER, Explanation, Pairing, PairingReport, Scores, Team

__all__ = [
    "HEADER",
    "SPEAKS",
    "Caller",
    "Candidate",
    "Credentials",
    "Degree",
    "Explanation",
    "Finding",
    "Liveness",
    "Matchmaker",
    "Pairing",
    "PairingReport",
    "Scores",
    "Team",
    "candidate_of",
    "choose",
    "matchmaker_of",
]
