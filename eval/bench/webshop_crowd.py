"""A crowd of scripted customers before the shop's web server: what each does is the expert's plan, as requests."""

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


def shopping(shop: Shop, goal: int) -> Iterator[tuple[str, str, dict[str, str]]]:
    """The expert's visit for a goal as requests: (method, path below the page's address, form)."""
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
def serving(**options: Any) -> Iterator[tuple[str, int]]:
    """A real server in a process of its own, on a free port: its host and port."""
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
    """One customer's visit over one connection, to the full score; the seconds of every answer go to `times`.

    Raises:
        RuntimeError: an answer was not what a browser should get.
    """
    connection = http.client.HTTPConnection(*address, timeout=60)
    cookie: dict[str, str] = {}

    def go(method: str, path: str, form: dict[str, str]) -> tuple[str, str]:
        headers = cookie | {"Content-Type": "application/x-www-form-urlencoded"}
        start = time.perf_counter()
        connection.request(method, path, urlencode(form) if form else None, headers)
        answer = connection.getresponse()
        body = answer.read().decode()
        times.append(time.perf_counter() - start)
        if "Set-Cookie" in answer.headers:
            cookie["Cookie"] = answer.headers["Set-Cookie"].split(";")[0]
        if answer.status == 303:
            return go("GET", answer.headers["Location"], {})
        if answer.status != 200:
            raise RuntimeError(f"{method} {path} was answered with {answer.status}")
        return path, body

    try:
        path, body = go("GET", f"/?goal={goal}", {})
        for method, below, form in shopping(shop, goal):
            path, body = go(method, path + below, form)
    finally:
        connection.close()
    if "<pre>1.0</pre>" not in body:
        raise RuntimeError(f"the visit for goal {goal} did not end in the full score")


def crowd(address: tuple[str, int], shop: Shop, customers: int = 50, visits: int = 2) -> list[float]:
    """So many customers at once, each on visits of its own.

    Returns:
        The seconds that every answer took.

    Raises:
        ExceptionGroup: whatever went wrong for any of them.
    """
    times: list[float] = []
    failures: list[Exception] = []

    def customer(number: int) -> None:
        try:
            for turn in range(visits):
                time.sleep(0.02 * (number % 10))  # people do not all press at the same moment
                visit(address, shop, number + customers * turn, times)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=customer, args=(number,)) for number in range(customers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise ExceptionGroup("customers could not shop", failures)
    return times
