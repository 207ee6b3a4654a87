"""Speed, measured as ratios within one run.

Machines differ and are shared, so absolute times say little. Each module measures ours and its yardstick in turn,
in CPU seconds of the same process, round by round, and yields `Row`s for one table.
"""
