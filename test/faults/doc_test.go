// Package faults runs servers, a broker and agents of a region, each server and
// agent as its own process, under every fault that the design covers, and then
// compares the objects of each cluster with the requested works. It has tests
// only; nothing imports it.
package faults
