"""Load test of the shop's web server: concurrent customers send the requests of the expert's plans."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from ...envs.webshop.expert import plan
from ...envs.webshop.session import Session
from ...envs.webshop.shop import Shop

_SERVER = f"""
import json, sys
from {__package__.partition(".")[0]}.envs.webshop.server import serve
serve(port=0, ready=lambda url: print(url, flush=True), **json.loads(sys.argv[1]))
"""


def plan_requests(shop: Shop, goal: int) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the expert's plan for a goal as requests: method, path below the page's address, and form."""
    product = shop.catalog.product(shop.catalog.number(shop.goal(goal).asin) or 0)
    for action in plan(shop, Session("", goal)) or []:
        name, argument = action[:-1].split("[", 1)
        option = next((o for o, values in product.options.items() if argument in values), None)
        if name == "search":
            yield "POST", "", {"search_query": argument, "action": "Search"}
        elif argument == product.asin.lower():
            yield "GET", f"/item/{product.asin}", {}
        elif option:
            yield "POST", "/option", {option: argument}
        else:
            yield "POST", "", {"action": argument}


@contextmanager
def serve_shop(**options: Any) -> Iterator[tuple[str, int]]:
    """Context with the host and port of a server in a separate process.

    Args:
        options: Options of `envs.webshop.server.serve`.
    """
    command = [sys.executable, "-c", _SERVER, json.dumps(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            found = re.match(r"http://(.*):(\d+)/", process.stdout.readline())
            if found is None:
                raise RuntimeError("the shop's server did not start")
            yield found[1], int(found[2])
        finally:
            process.terminate()


def visit(address: tuple[str, int], shop: Shop, goal: int, times: list[float]) -> None:
    """Visit the shop as one customer, over one connection, until the full score.

    Args:
        address: Host and port of the server.
        shop: The shop, to plan the visit.
        goal: Index of the goal.
        times: List to which the seconds of every response are appended.

    Raises:
        RuntimeError: A response has an unexpected status, or the visit does not reach the full score.
    """
    connection = http.client.HTTPConnection(*address, timeout=60)
    cookie: dict[str, str] = {}

    def send(method: str, path: str, form: dict[str, str]) -> tuple[str, str]:
        headers = cookie | {"Content-Type": "application/x-www-form-urlencoded"}
        start = time.perf_counter()
        connection.request(method, path, urlencode(form) if form else None, headers)
        response = connection.getresponse()
        body = response.read().decode()
        times.append(time.perf_counter() - start)
        if "Set-Cookie" in response.headers:
            cookie["Cookie"] = response.headers["Set-Cookie"].split(";")[0]
        if response.status == 303:
            return send("GET", response.headers["Location"], {})
        if response.status != 200:
            raise RuntimeError(f"{method} {path} returned status {response.status}")
        return path, body

    try:
        path, body = send("GET", f"/?goal={goal}", {})
        for method, subpath, form in plan_requests(shop, goal):
            path, body = send(method, path + subpath, form)
    finally:
        connection.close()
    if "<pre>1.0</pre>" not in body:
        raise RuntimeError(f"the visit for goal {goal} did not reach the full score")


def simulate_customers(address: tuple[str, int], shop: Shop, customers: int = 50, visits: int = 2) -> list[float]:
    """Visit the shop with concurrent customers.

    Args:
        address: Host and port of the server.
        shop: The shop, to plan the visits.
        customers: Number of concurrent customers.
        visits: Number of visits per customer, each with another goal.

    Returns:
        Seconds of every response.

    Raises:
        ExceptionGroup: A visit failed; it contains the errors of all customers.
    """
    times: list[float] = []
    failures: list[Exception] = []

    def customer(number: int) -> None:
        try:
            for index in range(visits):
                time.sleep(0.02 * (number % 10))  # People do not all click at the same moment.
                visit(address, shop, number + customers * index, times)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=customer, args=(number,)) for number in range(customers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise ExceptionGroup("visits of customers failed", failures)
    return times
