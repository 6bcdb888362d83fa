"""Runs the Python blocks of a document in order, and compares values with those in comments: python snippets.py DOCUMENT BLOCKS."""

import ast
import asyncio
import inspect
import json
import sys

document, blocks = sys.argv[1], json.load(open(sys.argv[2]))


def expected(text):
    """Return the value that the line's comment states, in a tuple, or None if it states none."""
    try:
        return (ast.literal_eval(text.rpartition("#")[2].strip()),)
    except (SyntaxError, ValueError):
        return None


async def run(scope, line, text):
    for node in ast.parse(text).body:
        is_value = isinstance(node, ast.Expr)
        part = ast.Expression(node.value) if is_value else ast.Module([node], [])
        place = f"{document}:{line + node.lineno - 1}"
        value = eval(compile(part, place, "eval" if is_value else "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), scope)
        if inspect.iscoroutine(value):
            value = await value
        stated = expected(text.splitlines()[node.end_lineno - 1]) if is_value else None
        assert stated in (None, (value,)), f"{place}: {value!r}, not {stated[0]!r}"


async def main():
    scope = {"keys": ["greeting", "absent"]}
    for line, text in blocks:
        await run(scope, line, text)
    if "CACHES" in scope:
        from django.conf import settings

        settings.configure(CACHES=scope["CACHES"])
        from django.core.cache import cache

        await cache.aset("key", 5)
        assert await cache.aget("key") == 5
    print(f"{document}: {len(blocks)} Python blocks passed")


asyncio.run(main())
