"""The experiments of the lessons: functions that run the engine and return plain figures.

A module for each lesson. A notebook cell calls one and looks at the result; what it does can be
read here. Nothing reads a clock: real-model runs count steps, tokens and blocks, and the
simulator's time is virtual.
"""
