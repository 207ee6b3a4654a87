"""Evaluation harness: suites, runs, statistics, reports and benchmarks."""
