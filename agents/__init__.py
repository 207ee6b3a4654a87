"""Agents: policies that turn observations into actions."""
