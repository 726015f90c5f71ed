"""Measures how soon faults are named by what they really cost, and how often healthy windows name a rank."""
