"""Counters, gauges and histograms as plain values: what a front counts (`recorder`), for one engine, by engine, or
summed over fronts. Imports core and config; `engine`, its folders and `entrypoints` import it."""
