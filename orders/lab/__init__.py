"""The oversell lab: the lesson of the project, on tables of its own, which knows nothing of the shop.


clearing    the lab's rows: cleared, and nothing else
models      a run and its events, kept for the last runs, so that a link shows them again
limits      what may be asked for: buyers, stock, gap, processes, time
supervisor  in the web server: the project's own lock, one process per run, no orphans
runner      that process: `python -m orders.lab.runner ID`
telling     what a race says to the page
stepping    two buyers who stop at every checkpoint
sources     the strategies' own lines
views       addresses and answers
"""
