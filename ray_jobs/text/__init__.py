"""Layer 1: prompts, chat rendering, markers, segments and loss masks; pure functions of ids and text."""
