"""A vLLM server, asked greedily and by LoopCD. `python examples/serve_and_query.py [--at http://127.0.0.1:8000]`

Without --at a server of tiny-early is started and stopped again; it needs vLLM (docs/serving.md).
"""

import argparse
import json
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import Request, urlopen

PROMPT = "Question: Tom has 10 beads. Tom has 5 more beads than Emma. How many beads does Emma have?\nAnswer:"


def ask(url: str, model: str, **settings: object) -> str:
    body = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": 60, "vllm_xargs": settings}
    request = Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request) as answer:
        return json.load(answer)["choices"][0]["text"]


def query(url: str) -> None:
    with urlopen(f"{url}/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    print("greedy:", ask(url, model, loopcd=False))
    print("LoopCD:", ask(url, model, loopcd_amateur_loop=1, loopcd_strength=0.2))


def serve_and_query(port: int) -> None:
    server = subprocess.Popen([sys.executable, "-m", "loopcd.cli", "serve", "tiny-early", "--port", str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        while server.poll() is None:
            try:
                urlopen(f"{url}/health").close()
                return query(url)
            except URLError:
                time.sleep(1)
        sys.exit("the server did not start")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--at", help="a server that runs already")
    given = parser.parse_args()
    query(given.at) if given.at else serve_and_query(8765)
