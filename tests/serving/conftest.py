"""What needs vLLM is below `vllm/`, and is collected only where vLLM is installed: by `make test-vllm`."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("vllm") else ["vllm"]
