"""The client of `scripts/two-hosts`: waits for the server, asks sixteen things at once, and looks whether both replicas worked.

ask_two_hosts.py URL MODEL SECONDS
"""

import asyncio
import re
import sys
import time

import click
import httpx

PROMPT = "Question: Tom has 3 apples and buys {} more. How many apples does Tom have?\nAnswer:"


async def main(url: str, model: str, seconds: float) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        await started(client, seconds)
        first = await asyncio.gather(*(ask(client, model, number) for number in range(16)))
        second = await asyncio.gather(*(ask(client, model, number) for number in range(16)))
        metrics = (await client.get("/metrics")).text
    if first != second:
        raise SystemExit("two-hosts: the same requests had different answers")
    done = {
        engine: float(count)
        for engine, count in re.findall(
            r'vllm:request_success_total\{engine="(\d+)",finished_reason="[^"]+"[^}]*\} ([\d.]+)', metrics
        )
        if float(count)
    }
    if sorted(done) != ["0", "1"]:
        raise SystemExit(f"two-hosts: answers by replica: {done}; both had to give some")
    click.echo(f"two-hosts: 32 answers, by replica {done}")


async def started(client: httpx.AsyncClient, seconds: float) -> None:
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        try:
            if (await client.get("/health", timeout=5)).status_code == 200:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(1)
    raise SystemExit(f"two-hosts: no server after {seconds:.0f} s")


async def ask(client: httpx.AsyncClient, model: str, number: int) -> str:
    body = {"model": model, "prompt": PROMPT.format(number), "temperature": 0, "max_tokens": 32}
    made = await client.post("/v1/completions", json=body | ({"vllm_xargs": {"loopcd": True}} if number % 2 else {}))
    made.raise_for_status()
    return made.json()["choices"][0]["text"]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
