"""Verification of an environment against the quality policy of OpenEnv: `arboretum verify`."""
