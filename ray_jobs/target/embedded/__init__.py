"""A server that speaks SGLang's native protocol over any transformers decoder on a CPU.

    python -m ray_jobs.target.embedded --model-path FOLDER --port 30000

For laptops, demos and tests: the same requests, replies, errors and deaths as a real server, with continuous batching.
"""
