"""Statistics over traces, interventions, and the paper's tables and figures, each by one command (`loopcd reproduce`)."""
