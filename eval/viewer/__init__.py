"""Viewer: a local web site over a folder of runs (extra `web`).

`library` finds the runs, `episodes` lists the episodes of one, `replay` repeats an episode in its environment,
`what_if` tries other actions, and `sessions` holds the episodes that are played in the browser. The modules named
`*_pages` answer requests; `app` puts them together.
"""
